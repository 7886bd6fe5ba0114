#pragma once

// Elements of 16 bits as tensor cores take them.
using Bits = unsigned short;  // of an element of x or w
using Word = unsigned;        // of an MMA: two elements

__device__ __forceinline__ Word rounded(Word word) { return word; }  // as it is

__device__ __forceinline__ Word word_of(Word first, Word second) { return first | second << 16; }

struct alignas(16) Chunk {
    Word words[4];
};

// A chunk of elements.
__device__ __forceinline__ Chunk chunk_of(const Bits (&elements)[8]) {
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk.words[i] = word_of(elements[2 * i], elements[2 * i + 1]);
    return chunk;
}
