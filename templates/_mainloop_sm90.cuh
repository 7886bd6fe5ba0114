#pragma once
#include "_sm90.cuh"

// The main loop of a consumer warpgroup, what CUTLASS's CollectiveMma does. Needs above it the function mma of _wgmma.jinja, d (+)= a * b.

// d = the products of k tiles `begin` to `end`, a stage each, whose MMAs are under way when it returns; returned is the last stage, which is not released.
// Descriptors a and b are of the first stage, d[i] has the rows of a from 64 i on. Mma says how a stage is waited for, multiplied and
// released, and what follows: of `more`, where operands lie elsewhere, too. Mma::multiply commits: where branches of it join before the commit,
// the compiler ends a group in each of them, and the wait below would be for all MMAs. Arguments, not members or closures, after which the compiler
// numbers registers as it would without a function.
template <class Mma, int STAGES, int BLOCKS, int TILES, class... More>
__device__ __forceinline__ int collective_mma(float (&d)[BLOCKS][TILES][4], PipelineTma<STAGES>& pipeline, PipelineState<STAGES>& state,
                                              unsigned long long a, unsigned long long b, int begin, int end, int lane,
                                              More&... more) {
    wgmma_begin(d);
    int last = 0;  // stage whose MMAs are under way
#pragma unroll 1
    for (int k_tile = begin; k_tile < end; ++k_tile, ++state) {
        Mma::wait(pipeline, state, more...);
        wgmma_fence();
        Mma::multiply(d, a, b, state.index, k_tile > begin, more...);
        if (k_tile > begin) {
            wgmma_wait_group<1>();
            Mma::release(pipeline, last, lane, more...);
        }
        last = state.index;
        Mma::next(more...);
    }
    return last;
}

// Of descriptors, from MMA to MMA in depth. A transposed operand's row is one step in depth, an MMA 16 of them.
template <bool TRANSPOSED>
constexpr int OPERAND_STEP = TRANSPOSED ? 16 * ROW_STEP : DEPTH_STEP;

// Operands that lie in the same stage, K_BLOCKS MMAs in depth: rows of ROW_BYTES of neighbours in depth, or TRANSPOSED, rows that are
// the depth.
template <int STAGE_BYTES, int K_BLOCKS, bool A_TRANSPOSED = false, bool B_TRANSPOSED = false, int ROW_BYTES = OPERAND_ROW_BYTES>
struct StagedMma {
    static_assert(STAGE_BYTES % (8 * ROW_BYTES) == 0, "a stage begins where the pattern of the swizzle does, every 8 rows");
    static_assert(K_BLOCKS * MMA_DEPTH_BYTES <= ROW_BYTES, "a stage is one operand row deep");
    static constexpr int ROWS_STEP = MMA_ROWS * ROW_BYTES / DESCRIPTOR_UNIT;

    template <int STAGES, class... More>
    __device__ __forceinline__ static void wait(PipelineTma<STAGES>& pipeline, const PipelineState<STAGES>& state, More&...) {
        pipeline.consumer_wait(state);
    }
    template <int BLOCKS, int TILES, class... More>
    __device__ __forceinline__ static void multiply(float (&d)[BLOCKS][TILES][4], unsigned long long a, unsigned long long b, int index,
                                                    bool accumulate, More&...) {
#pragma unroll
        for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
            const int at = index * (STAGE_BYTES / DESCRIPTOR_UNIT);
            const int a_at = at + k_block * OPERAND_STEP<A_TRANSPOSED>, b_at = at + k_block * OPERAND_STEP<B_TRANSPOSED>;
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) mma(d[i], a + (a_at + i * ROWS_STEP), b + b_at, accumulate || k_block > 0);
        }
        wgmma_commit();
    }
    template <int STAGES, class... More>
    __device__ __forceinline__ static void release(PipelineTma<STAGES>& pipeline, int index, int lane, More&...) {
        if (lane == 0) pipeline.consumer_release(index);
    }
    // As `release`, of a tile's last stage.
    template <int STAGES, class... More>
    __device__ __forceinline__ static void release_tile(PipelineTma<STAGES>& pipeline, int index, int lane, More&...) {
        if (lane == 0) pipeline.consumer_release(index);
    }
    template <class... More>
    __device__ __forceinline__ static void next(More&...) {}
};
