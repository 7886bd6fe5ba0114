#pragma once
#include "_pipeline.cuh"

// Planes of input that begin anywhere, to pipeline stages. Needs _ptx_barrier.cuh, _ptx_async.cuh and the family's constants.

constexpr int PRODUCER_WARPS = 3, FULL_ARRIVALS = 32 * PRODUCER_WARPS;  // on the barrier of a stage

// What copies a block's inputs: PRODUCER_WARPS warps, a plane a warp, in words from the one that has its first element.
__device__ __forceinline__ void copy_inputs(Word* stages, PipelineAsync<STAGES>& pipeline, const Bits* __restrict__ x, int work_tiles,
                                            int warp, int n) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    PipelineState<STAGES> state;
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += static_cast<int>(gridDim.x), ++state) {
        pipeline.producer_acquire(state);
#pragma unroll 1
        for (int channel = warp; channel < C; channel += PRODUCER_WARPS) {
            const long long begin = input_at(work_tile, channel) / WORD_TAPS * WORD_TAPS;
            const Bits* const from = x + begin;
            Word* const to = stages + state.index * STAGE + plane_at(channel);
            if constexpr (WORD_TAPS == 1) {
#pragma unroll 8
                for (int i = lane; i < WINDOW_H * W; i += 32) copy_async<4>(to + i, from + i);
            } else {
                // The last word may end behind x.
                const long long left = static_cast<long long>(n) * (C * H * W) - begin;
#pragma unroll 8
                for (int i = lane; i < WINDOW_H * W / 2 + 1; i += 32) {
                    const int there = left - 2 * i >= 2 ? 4 : left - 2 * i == 1 ? 2 : 0;
                    copy_async_first<4>(to + i, from + (there > 0 ? 2 * i : 0), there);
                }
            }
        }
        copy_async_arrive(pipeline.full + state.index);
    }
}
