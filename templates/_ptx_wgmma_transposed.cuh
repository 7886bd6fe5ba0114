#pragma once

// Operands of a warpgroup's matrix products that lie transposed in shared memory (sm_90a), 16-bit elements. Needs _ptx_wgmma_shared.cuh.
//
// wgmma_descriptor_transposed: of an operand whose rows of 128 bytes are 64 neighbours across its depth, one row for each of TILE_K
// steps in depth, swizzled as TMA does with 128 bytes; the next 64 neighbours lie behind these rows. Add
// 16 * ROW_STEP for the next MMA in depth, TILE_K * ROW_STEP for the next 64 neighbours. In a cluster an address says in its upper bits which block's
// it is; they would lie where a descriptor has the distance to these neighbours, which others do not read.

template <int TILE_K>
__device__ __forceinline__ unsigned long long wgmma_descriptor_transposed(const void* pointer) {
    constexpr unsigned long long NEXT_64 = TILE_K * ROW_STEP;
    constexpr unsigned long long DISTANCE = 0x3fffull << 16;
    return (wgmma_descriptor(pointer) & ~DISTANCE) | NEXT_64 << 16;
}
