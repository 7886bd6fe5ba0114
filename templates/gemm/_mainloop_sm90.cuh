#pragma once

// What the Hopper families share: operands of a stage, and the products of a tile. Needs _pipeline.cuh, _ptx_tma.cuh,
// _ptx_wgmma_transposed.cuh, and above it the function mma of _wgmma.jinja.
//
// An operand has ROWS rows of 128 bytes of neighbours in depth. Where it is TRANSPOSED, rows are the depth: boxes of 64 neighbours
// across it follow each other, TILE_K rows of 128 bytes each.

template <bool TRANSPOSED>
constexpr int OPERAND_STEP = TRANSPOSED ? 128 : 2;  // of descriptors, from MMA to MMA in depth

// Loads an operand's rows from `row` on, TILE_K of the depth from k on.
template <bool TRANSPOSED, int ROWS>
__device__ __forceinline__ void load_operand(unsigned char* to, const TensorMap* map, Barrier* full, int row, int k, int product) {
    if constexpr (TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 64) tma_load(to + i * 128, map, full, row + i, k, product);
    } else {
        tma_load(to, map, full, k, row, product);
    }
}

template <bool TRANSPOSED, int TILE_K>
__device__ __forceinline__ unsigned long long operand_descriptor(const void* pointer) {
    if constexpr (TRANSPOSED) return wgmma_descriptor_transposed<TILE_K>(pointer);
    return wgmma_descriptor(pointer);
}

// d = the products of `k_tiles` stages, K_BLOCKS MMAs in depth each; d[i] has the columns of b from 64 i on. `release(stage)` follows once
// its MMAs are done.
template <bool A_TRANSPOSED, bool B_TRANSPOSED, int STAGE_BYTES, int K_BLOCKS, int STAGES, int BLOCKS, int TILES, class Release>
__device__ __forceinline__ void multiply(float (&d)[BLOCKS][TILES][4], PipelineTma<STAGES>& pipeline, PipelineState<STAGES>& state,
                                         unsigned long long a, unsigned long long b, int k_tiles, const Release& release) {
    wgmma_begin(d);
    int last = 0;  // stage whose MMAs are under way
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
        pipeline.consumer_wait(state);
        wgmma_fence();
#pragma unroll
        for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
            const int at = state.index * (STAGE_BYTES / 16);
            const int a_at = at + k_block * OPERAND_STEP<A_TRANSPOSED>, b_at = at + k_block * OPERAND_STEP<B_TRANSPOSED>;
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) mma(d[i], b + (b_at + i * 512), a + a_at, k_tile > 0 || k_block > 0);
        }
        wgmma_commit();
        if (k_tile > 0) {
            wgmma_wait_group<1>();
            release(last);
        }
        last = state.index;
    }
}
