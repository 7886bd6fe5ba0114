#pragma once
#include "_dtype_f32.cuh"

#include "_ptx_mma.cuh"

// Elements as tensor cores take them.
using Bits = float;  // of an element of x or w
using Word = float;  // of an MMA

__device__ __forceinline__ Word rounded(Word word) { return to_tf32(word); }

// Of two elements, of which a word has room for the first.
__device__ __forceinline__ Word word_of(Word first, Word) { return first; }

struct alignas(16) Chunk {
    Word words[4];
};

// A chunk of elements, each rounded to the nearest TF32.
__device__ __forceinline__ Chunk chunk_of(const Bits (&elements)[4]) {
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk.words[i] = to_tf32(elements[i]);
    return chunk;
}

// d += a * b, 8 or 4 deep.
__device__ __forceinline__ void mma_m16n8(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) { mma_m16n8k8_tf32(d, a, b, d); }
__device__ __forceinline__ void mma_m16n8(float (&d)[4], const Word (&a)[2], Word b) { mma_m16n8k4_tf32(d, a, b, d); }
