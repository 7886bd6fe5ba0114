#pragma once
#include "_sm90.cuh"
#include "_ptx_wgmma_transposed.cuh"

// Operands of a matrix product as stages have them: ROWS rows of 128 bytes of neighbours in depth. Where one is TRANSPOSED, rows are the
// depth: boxes of 64 neighbours across it follow each other, TILE_K rows of 128 bytes each.

// Loads an operand's rows from `row` on, TILE_K of the depth from k on.
template <bool TRANSPOSED, int ROWS>
__device__ __forceinline__ void load_operand(unsigned char* to, const TensorMap* map, Barrier* full, int row, int k, int product) {
    if constexpr (TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 64) tma_load(to + i * OPERAND_ROW_BYTES, map, full, row + i, k, product);
    } else {
        tma_load(to, map, full, k, row, product);
    }
}

template <bool TRANSPOSED, int TILE_K>
__device__ __forceinline__ unsigned long long operand_descriptor(const void* pointer) {
    if constexpr (TRANSPOSED) return wgmma_descriptor_transposed<TILE_K>(pointer);
    return wgmma_descriptor(pointer);
}
