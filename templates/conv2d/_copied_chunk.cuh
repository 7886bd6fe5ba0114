#pragma once

// Chunks of x to shared memory: asynchronously, or through registers where an element is all that lies on a multiple of its size. Needs _ptx.cuh
// and COPY_ELEMENTS.

// What a thread would load to registers: nothing.
struct Fetched {
    static constexpr bool USED = false;
    __device__ __forceinline__ void load(const Bits*, unsigned, int) {}
    __device__ __forceinline__ void stage(Chunk*) const {}
};

// Zeros stand for padding: for all of it where it is not `there`, and for elements that are not inside.
template <typename Inside>
__device__ __forceinline__ void copy_chunk(Chunk* to, const Bits* chunk, bool there, const Inside& inside) {
    if constexpr (COPY_ELEMENTS == 1) {
        Chunk copied;
#pragma unroll
        for (int element = 0; element < 8; ++element) copied.at[element] = there && inside(element) ? chunk[element] : Bits{0};
        *to = copied;
    } else {
#pragma unroll
        for (int element = 0; element < 8; element += COPY_ELEMENTS) {
            copy_async<2 * COPY_ELEMENTS>(to->at + element, chunk + element, there && inside(element));
        }
    }
}
