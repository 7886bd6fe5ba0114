#pragma once

// What happens to an input before it is multiplied: activation(input * scale + shift), rounded to T, of 16 bits, with factors of its image and
// channel. Padding stays zero. Needs _epilogue.cuh, for activations.

template <bool SHIFT, float (*ACTIVATION)(float), bool BF16>
struct Prologue {
    static constexpr bool HAS_SHIFT = SHIFT;

    // Of neighbouring channels. `shift` is read only where there is one.
    template <typename T, int N>
    __device__ static __forceinline__ void apply(AlignedArray<T, N>& inputs, const AlignedArray<T, N>& scale, const AlignedArray<T, N>& shift) {
#ifdef __CUDACC__
        if constexpr (ACTIVATION == identity || ACTIVATION == relu) {  // two at once, rounded once, too
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                unsigned& word = reinterpret_cast<unsigned*>(&inputs)[i];
                const unsigned factors = reinterpret_cast<const unsigned*>(&scale)[i];
                const unsigned terms = SHIFT ? reinterpret_cast<const unsigned*>(&shift)[i] : 0x80008000u;  // zeros that keep the sign of one
                if constexpr (BF16) {
                    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(word) : "r"(factors), "r"(terms));
                    if constexpr (ACTIVATION == relu) asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(word) : "r"(0u));
                } else {
                    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(word) : "r"(factors), "r"(terms));
                    if constexpr (ACTIVATION == relu) asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(word) : "r"(0u));
                }
            }
        } else
#endif
        {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float value = to_float(inputs.at[i]) * to_float(scale.at[i]);
                if constexpr (SHIFT) value += to_float(shift.at[i]);
                inputs.at[i] = from_float<T>(ACTIVATION(value));
            }
        }
    }
};
