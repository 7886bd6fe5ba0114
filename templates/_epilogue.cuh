#pragma once

// What happens to a finished accumulator before it is stored: the output channel's bias and the residual are added, then
// comes the activation. A NaN stays a NaN.
// Every family stores through it, so that a further epilogue is written here alone. Needs _element.cuh.

enum class Epilogue { none, bias, bias_relu, bias_add, bias_add_relu };

template <Epilogue EPILOGUE>
constexpr bool HAS_BIAS = EPILOGUE != Epilogue::none;

template <Epilogue EPILOGUE>
constexpr bool HAS_RESIDUAL = EPILOGUE == Epilogue::bias_add || EPILOGUE == Epilogue::bias_add_relu;

template <Epilogue EPILOGUE>
__device__ __forceinline__ float activate(float value) {
    if constexpr (EPILOGUE == Epilogue::bias_relu || EPILOGUE == Epilogue::bias_add_relu) value = value < 0.0f ? 0.0f : value;
    return value;
}

// With the output channel's bias in a register.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias) {
    if constexpr (HAS_BIAS<EPILOGUE>) accumulator += bias;
    return activate<EPILOGUE>(accumulator);
}

// And a residual, which is added before the activation.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias, float residual) {
    return activate<EPILOGUE>(accumulator + bias + residual);
}

template <Epilogue EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k, float residual) {
    return finish<EPILOGUE>(accumulator, to_float(bias[k]), residual);
}

// With bias[k], which is read only where there is one.
template <Epilogue EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (HAS_BIAS<EPILOGUE>) accumulator += to_float(bias[k]);
    return activate<EPILOGUE>(accumulator);
}
