#pragma once

// What happens to a finished accumulator before it is stored: the output channel's bias, then ReLU. A NaN stays a NaN.
// Needs _element.cuh.

template <bool WITH_BIAS, bool WITH_RELU, typename T>
__device__ __forceinline__ float epilogue(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (WITH_BIAS) accumulator += to_float(bias[k]);
    if constexpr (WITH_RELU) accumulator = accumulator < 0.0f ? 0.0f : accumulator;
    return accumulator;
}
