#pragma once
#include "_element_f16.cuh"

// Arithmetic: what a multiply-add works on. A Value holds LANES output channels of one pixel, a Scalar one of them.

__device__ __forceinline__ __half to_half(float value) { return __float2half_rn(value); }
__device__ __forceinline__ __half to_half(__half value) { return value; }

// Two elements STRIDE apart. Neighbouring halves are one access: the first must then be aligned to four bytes.
template <int STRIDE>
__device__ __forceinline__ __half2 half_pair(const float* first) {
    return __floats2half2_rn(first[0], first[STRIDE]);
}

template <int STRIDE>
__device__ __forceinline__ __half2 half_pair(const __half* first) {
    if constexpr (STRIDE == 1) {
        return *reinterpret_cast<const __half2*>(first);
    } else {
        return __halves2half2(first[0], first[STRIDE]);
    }
}

// Accumulators in half precision, one output channel a value.
struct HalfArithmetic {
    using Scalar = __half;
    using Value = __half;
    static constexpr int LANES = 1;

    static __device__ __forceinline__ Value zero() { return __float2half_rn(0.0f); }

    template <typename T>
    static __device__ __forceinline__ Scalar scalar(T element) {
        return to_half(element);
    }

    template <typename T>
    static __device__ __forceinline__ Value splat(T input) {
        return to_half(input);
    }

    template <int K_STRIDE, typename T>
    static __device__ __forceinline__ Value filters(const T* first) {
        return to_half(*first);
    }

    static __device__ __forceinline__ Value multiply_add(Value a, Value b, Value accumulator) { return __hfma(a, b, accumulator); }

    static __device__ __forceinline__ float lane(Value value, int) { return __half2float(value); }
};

// Accumulators in half precision, two neighbouring output channels a value: one instruction multiplies and adds both.
struct Half2Arithmetic {
    using Scalar = __half;
    using Value = __half2;
    static constexpr int LANES = 2;

    static __device__ __forceinline__ Value zero() { return __float2half2_rn(0.0f); }

    template <typename T>
    static __device__ __forceinline__ Scalar scalar(T element) {
        return to_half(element);
    }

    // The same input for every lane.
    template <typename T>
    static __device__ __forceinline__ Value splat(T input) {
        return __half2half2(to_half(input));
    }

    // The filters of LANES output channels, K_STRIDE elements apart.
    template <int K_STRIDE, typename T>
    static __device__ __forceinline__ Value filters(const T* first) {
        return half_pair<K_STRIDE>(first);
    }

    static __device__ __forceinline__ Value multiply_add(Value a, Value b, Value accumulator) { return __hfma2(a, b, accumulator); }

    static __device__ __forceinline__ float lane(Value value, int index) {
        return index == 0 ? __low2float(value) : __high2float(value);
    }
};
