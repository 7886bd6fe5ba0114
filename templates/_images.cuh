#pragma once

// Images of outputs on their way from shared memory to y. Needs _ptx.cuh and _ptx_barrier.cuh.

// Elements between a place in memory and the 16-byte boundary before it. What is staged, or copied, lies like its place in memory.
template <typename E>
__device__ __forceinline__ int behind_vector(const E* place) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(place) % 16 / sizeof(E));
}

// What copies a block's images of ELEMENTS to y: a warp. STAGING buffers of BUFFER elements hold them in turn; `staged` says of each that an
// image is there, `written` that it has been read. A block's images are gridDim.x apart.
template <int ELEMENTS, int BUFFER, int STAGING, typename T>
__device__ __forceinline__ void copy_images(const T* buffers, Barrier* staged, Barrier* written, T* __restrict__ y, int n) {
    constexpr int VECTOR = 16 / static_cast<int>(sizeof(T));
    const int lane = static_cast<int>(threadIdx.x % 32);
    int buffer = 0, parity = 0;
    for (int image = static_cast<int>(blockIdx.x); image < n; image += static_cast<int>(gridDim.x)) {
        const T* const from = buffers + buffer * BUFFER;
        T* const to = y + image * static_cast<long long>(ELEMENTS);
        barrier_wait(staged + buffer, parity);
        if constexpr (ELEMENTS % VECTOR == 0) {
            if (lane == 0) bulk_store(to, from, ELEMENTS * static_cast<int>(sizeof(T)));
        } else {
            const int before = behind_vector(to), head = min((VECTOR - before) % VECTOR, ELEMENTS), rest = (ELEMENTS - head) % VECTOR;
            const int vectors = (ELEMENTS - head) / VECTOR;
            if (lane == 0 && vectors > 0) bulk_store(to + head, from + before + head, 16 * vectors);
            // What whole vectors leave at the beginning and the end.
            if (lane < head) to[lane] = from[before + lane];
            if (lane < rest) to[ELEMENTS - 1 - lane] = from[before + ELEMENTS - 1 - lane];
        }
        bulk_store_commit();
        bulk_store_wait_read<0>();
        __syncwarp();
        if (lane == 0) barrier_arrive(written + buffer);
        if (++buffer == STAGING) buffer = 0, parity ^= 1;
    }
}
