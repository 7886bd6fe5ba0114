#pragma once
#include "_pipeline.cuh"

// Planes of input that begin on a multiple of 16 bytes, to pipeline stages. Needs _ptx_barrier.cuh and the family's constants.

constexpr int PRODUCER_WARPS = 1, FULL_ARRIVALS = C;  // on the barrier of a stage

// What copies a block's inputs: a warp, a plane a lane.
__device__ __forceinline__ void copy_inputs(Word* stages, PipelineAsync<STAGES>& pipeline, const Bits* __restrict__ x, int work_tiles,
                                            int, int) {
    constexpr int BYTES = WINDOW_H * W * static_cast<int>(sizeof(Bits));
    PipelineState<STAGES> state;
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += static_cast<int>(gridDim.x), ++state) {
        pipeline.producer_acquire(state);
        for (int channel = static_cast<int>(threadIdx.x % 32); channel < C; channel += 32) {
            barrier_arrive_expect(pipeline.full + state.index, BYTES);
            bulk_load(stages + state.index * STAGE + plane_at(channel), x + input_at(work_tile, channel), BYTES, pipeline.full + state.index);
        }
    }
}
