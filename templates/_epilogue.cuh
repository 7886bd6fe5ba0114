#pragma once

// What happens to a finished accumulator before it is stored: the output channel's bias and the residual are added, then
// comes the activation. A NaN stays a NaN.
// Every family stores through it, so that a further activation is written here alone, a function of its word in
// operation.toml. Needs _element.cuh.

__device__ __forceinline__ float identity(float value) { return value; }

__device__ __forceinline__ float relu(float value) { return value < 0.0f ? 0.0f : value; }

// What is added to an accumulator, and what the sum goes through.
template <bool BIAS, bool RESIDUAL, float (*ACTIVATION)(float)>
struct Epilogue {
    static constexpr bool HAS_BIAS = BIAS, HAS_RESIDUAL = RESIDUAL;
    __device__ static __forceinline__ float activate(float value) { return ACTIVATION(value); }
};

// With the output channel's bias in a register.
template <class EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias) {
    if constexpr (EPILOGUE::HAS_BIAS) accumulator += bias;
    return EPILOGUE::activate(accumulator);
}

// And a residual.
template <class EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias, float residual) {
    return EPILOGUE::activate(accumulator + bias + residual);
}

template <class EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k, float residual) {
    return finish<EPILOGUE>(accumulator, to_float(bias[k]), residual);
}

// With bias[k], which is read only where there is one.
template <class EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (EPILOGUE::HAS_BIAS) accumulator += to_float(bias[k]);
    return EPILOGUE::activate(accumulator);
}
