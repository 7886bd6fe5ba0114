#pragma once

// A stage's filters: TILE_M rows, loaded ROWS at a time. Rows of no output channel are not loaded, because TMA takes time to write zeros, too:
// what they hold only reaches outputs that are not stored. Needs _sm90.cuh and the family's constants.

// The bytes that load_filters brings for the output channels from k on.
template <int ROWS>
__device__ __forceinline__ int filter_bytes(int k) {
    return (ROWS == TILE_M || k + TILE_M <= K ? TILE_M : K - k) * OPERAND_ROW_BYTES;
}

template <int ROWS>
__device__ __forceinline__ void load_filters(unsigned char* to, const TensorMap& w_map, Barrier* full, int c, int tap, int k) {
    static_assert(ROWS == TILE_M || K % ROWS == 0, "loads have no row of zeros");
    tma_load(to, &w_map, full, c, tap, k);
#pragma unroll
    for (int row = ROWS; row < TILE_M; row += ROWS) {
        if (k + row < K) tma_load(to + row * OPERAND_ROW_BYTES, &w_map, full, c, tap, k + row);
    }
}
