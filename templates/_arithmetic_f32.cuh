#pragma once
#include "_element.cuh"

// Arithmetic: what a multiply-add works on. A Value holds LANES output channels of one pixel, a Scalar one of them.

// Accumulators in single precision.
struct FloatArithmetic {
    using Scalar = float;
    using Value = float;
    static constexpr int LANES = 1;

    static __device__ __forceinline__ Value zero() { return 0.0f; }

    template <typename T>
    static __device__ __forceinline__ Scalar scalar(T element) {
        return to_float(element);
    }

    // The same input for every lane.
    template <typename T>
    static __device__ __forceinline__ Value splat(T input) {
        return to_float(input);
    }

    // The filters of LANES output channels, K_STRIDE elements apart.
    template <int K_STRIDE, typename T>
    static __device__ __forceinline__ Value filters(const T* first) {
        return to_float(*first);
    }

    static __device__ __forceinline__ Value multiply_add(Value a, Value b, Value accumulator) { return fmaf(a, b, accumulator); }

    static __device__ __forceinline__ float lane(Value value, int) { return value; }
};
