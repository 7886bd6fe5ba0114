#pragma once

// What happens to a finished sum before it is stored: the map's bias, then the rectifier. A NaN stays a NaN.
// Needs _element.cuh.

template <bool WITH_BIAS, bool WITH_RELU, typename T>
__device__ __forceinline__ float epilogue(float sum, const T* __restrict__ bias, int map) {
    if constexpr (WITH_BIAS) sum += to_float(bias[map]);
    if constexpr (WITH_RELU) sum = sum < 0.0f ? 0.0f : sum;
    return sum;
}
