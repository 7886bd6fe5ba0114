#pragma once
#include "_alignment.cuh"
#include "_pipeline.cuh"

// Images of outputs on their way from shared memory to y. Needs _ptx.cuh and _ptx_barrier.cuh.

// What copies a block's images of ELEMENTS to y: a warp. STAGES epilogue stages of STAGE elements hold them, of which it is the
// consumer. A block's images are gridDim.x apart.
template <int ELEMENTS, int STAGE, int STAGES, typename T>
__device__ __forceinline__ void store_images(const T* stages, PipelineAsync<STAGES>& pipeline, T* __restrict__ y, int n) {
    constexpr int VECTOR = 16 / static_cast<int>(sizeof(T));
    const int lane = static_cast<int>(threadIdx.x % 32);
    PipelineState<STAGES> state;
    for (int image = static_cast<int>(blockIdx.x); image < n; image += static_cast<int>(gridDim.x), ++state) {
        const T* const from = stages + state.index * STAGE;
        T* const to = y + image * static_cast<long long>(ELEMENTS);
        pipeline.consumer_wait(state);
        if constexpr (ELEMENTS % VECTOR == 0) {
            if (lane == 0) bulk_store(to, from, ELEMENTS * static_cast<int>(sizeof(T)));
        } else {
            const int before = alignment_offset(to), head = min((VECTOR - before) % VECTOR, ELEMENTS), tail = (ELEMENTS - head) % VECTOR;
            const int vectors = (ELEMENTS - head) / VECTOR;
            if (lane == 0 && vectors > 0) bulk_store(to + head, from + before + head, 16 * vectors);
            // What whole vectors leave at the beginning and the end.
            if (lane < head) to[lane] = from[before + lane];
            if (lane < tail) to[ELEMENTS - 1 - lane] = from[before + ELEMENTS - 1 - lane];
        }
        bulk_store_commit();
        bulk_store_wait_read<0>();
        __syncwarp();
        if (lane == 0) pipeline.consumer_release(state.index);
    }
}
