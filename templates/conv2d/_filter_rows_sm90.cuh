#pragma once

// A stage's filters: TILE_M rows, loaded ROWS at a time; with ROWS = 0 those of a transposed convolution, of which 64 output channels are TILE_K
// rows, with the taps in the opposite order. Rows of no output channel are not loaded, because TMA takes time to write zeros, too:
// what they hold only reaches outputs that are not stored. Needs _sm90.cuh and the family's constants.

// The bytes that load_filters brings for the output channels from k on.
template <int ROWS>
__device__ __forceinline__ int filter_bytes(int k) {
    const int rows = ROWS == TILE_M || k + TILE_M <= K ? TILE_M : K - k;
    return (ROWS == 0 ? (rows + 63) / 64 * 64 : rows) * OPERAND_ROW_BYTES;
}

template <int ROWS>
__device__ __forceinline__ void load_filters(unsigned char* to, const TensorMap& w_map, Barrier* full, int c, int tap, int k) {
    constexpr int STEP = ROWS == 0 ? 64 : ROWS;
    static_assert(ROWS == TILE_M || ROWS == 0 || K % STEP == 0, "loads have no row of zeros");
#pragma unroll
    for (int row = 0; row < TILE_M; row += STEP) {
        if (row > 0 && k + row >= K) break;
        unsigned char* const rows = to + row * OPERAND_ROW_BYTES;
        if constexpr (ROWS == 0) {
            tma_load(rows, &w_map, full, k + row, TAPS - 1 - tap, c);
        } else {
            tma_load(rows, &w_map, full, c, tap, k + row);
        }
    }
}
