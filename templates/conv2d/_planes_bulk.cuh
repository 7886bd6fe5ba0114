#pragma once

// Planes of input that begin on a multiple of 16 bytes, to pipeline stages. Needs _ptx_barrier.cuh and the family's constants.

constexpr int PRODUCER_WARPS = 1, FULL_ARRIVALS = C;  // on the barrier of a stage

// What copies a block's inputs: a warp, a plane a lane.
__device__ __forceinline__ void copy_inputs(Word* stages, Barrier* full, Barrier* empty, const Bits* __restrict__ x, int work_tiles,
                                            int, int) {
    constexpr int BYTES = WINDOW_H * W * static_cast<int>(sizeof(Bits));
    int stage = 0, parity = 1;  // nobody has to free a pipeline stage before its first use
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += static_cast<int>(gridDim.x)) {
        barrier_wait(empty + stage, parity);
        for (int channel = static_cast<int>(threadIdx.x % 32); channel < C; channel += 32) {
            barrier_arrive_expect(full + stage, BYTES);
            bulk_load(stages + stage * STAGE + plane_at(channel), x + input_at(work_tile, channel), BYTES, full + stage);
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}
