#pragma once
#include "_dtype_bf16.cuh"

#include "_ptx_mma.cuh"

#include "_words_16.cuh"

// d += a * b, 16 or 8 deep.
__device__ __forceinline__ void mma_m16n8(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) { mma_m16n8k16_bf16(d, a, b, d); }
__device__ __forceinline__ void mma_m16n8(float (&d)[4], const Word (&a)[2], Word b) { mma_m16n8k8_bf16(d, a, b, d); }
