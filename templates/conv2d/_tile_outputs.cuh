#pragma once
#include "_alignment.cuh"
#include "_pipeline.cuh"

// Outputs of work tiles from epilogue stages to y: whole work tiles, or runs of rows of each output channel, which begin anywhere. Needs _ptx.cuh,
// _ptx_barrier.cuh and the family's constants.

// What copies its outputs: a warp.
__device__ __forceinline__ void store_outputs(const T* epilogue_stages, PipelineAsync<EPILOGUE_STAGES>& pipeline, T* __restrict__ y, int work_tiles) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    PipelineState<EPILOGUE_STAGES> state;
    int last = -1;  // the buffer being copied
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += static_cast<int>(gridDim.x), ++state) {
        const T* const from = epilogue_stages + state.index * EPILOGUE_STAGE;
        pipeline.consumer_wait(state);
        if constexpr (WHOLE) {
            if (lane == 0) bulk_store(y + output_at(work_tile, 0), from, EPILOGUE_STAGE * static_cast<int>(sizeof(T)));
        } else {
            for (int k = lane; k < K; k += 32) {
                T* const run = y + output_at(work_tile, k);
                const int before = alignment_offset(run), head = (VECTOR - before) % VECTOR, vectors = (RUN - head) / VECTOR;
                if (RUN >= 2 * VECTOR || vectors > 0) bulk_store(run + head, from + k * PLANE_Y + before + head, 16 * vectors);
            }
        }
        bulk_store_commit();
        if constexpr (!WHOLE && (P * Q % VECTOR > 0 || RUN % VECTOR > 0 || (P - TILE_P) * Q % VECTOR > 0)) {
            // What whole vectors leave of a run at its beginning and its end.
            constexpr int EDGES = 2 * (VECTOR - 1);
            for (int i = lane; i < K * EDGES; i += 32) {
                T* const run = y + output_at(work_tile, i / EDGES);
                const int before = alignment_offset(run), head = min((VECTOR - before) % VECTOR, RUN), tail = (RUN - head) % VECTOR;
                const int edge = i % EDGES, at = edge < VECTOR - 1 ? edge : RUN - 1 - (edge - (VECTOR - 1));
                if (edge < VECTOR - 1 ? edge < head : edge - (VECTOR - 1) < tail) run[at] = from[i / EDGES * PLANE_Y + before + at];
            }
        }
        if (EPILOGUE_STAGES == 1) {
            bulk_store_wait_read<0>();
            __syncwarp();
            if (lane == 0) pipeline.consumer_release(state.index);
        } else if (last >= 0) {
            bulk_store_wait_read<1>();
            __syncwarp();
            if (lane == 0) pipeline.consumer_release(last);
        }
        last = state.index;
    }
    bulk_store_wait_read<0>();
}
