#pragma once

// What the families of norm share. Needs _element.cuh and _epilogue.cuh, and the constants C, VECTOR and EPS.

using Chunk = AlignedArray<T, VECTOR>;

// The weights and biases of VECTOR channels: 1 and 0 if the problem has none.
template <bool WEIGHT, bool BIAS>
struct Affine {
    float weight[VECTOR], bias[VECTOR];

    __device__ __forceinline__ Affine(const T* __restrict__ weights, const T* __restrict__ biases, int channel) {
        Chunk loaded;
        if constexpr (WEIGHT) loaded = *reinterpret_cast<const Chunk*>(weights + channel);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) weight[i] = WEIGHT ? to_float(loaded.at[i]) : 1.0f;
        if constexpr (BIAS) loaded = *reinterpret_cast<const Chunk*>(biases + channel);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) bias[i] = BIAS ? to_float(loaded.at[i]) : 0.0f;
    }
};

__device__ __forceinline__ float inverse_deviation(float variance) { return 1.0f / sqrtf(variance + EPS); }
