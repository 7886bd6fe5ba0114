#pragma once
#include "_im2col_boxes.cuh"

// Each block loads the columns of its tile. Needs _mainloop_sm90.cuh and the family's constants.

using Mma = StagedMma<STAGE_BYTES, DEPTH / 16, true, true>;

// Loads a step's boxes of x. Behind the last tap the last one comes again, for columns that are not stored.
template <class Tile>
__device__ __forceinline__ void load_columns(unsigned char* to, const TensorMap& x_map, Barrier* full, const Tile& tile, int pixel) {
    Corner corner = {};
    if constexpr (!POINTWISE) corner = window_corner(pixel);
#pragma unroll
    for (int i = 0; i < TILE_COLUMNS / 64; ++i) {
        const int column = tile.first_column + i * 64, tap = min(column / TAP_COLUMNS, TAPS - 1);
        load_pixels(to + i * (DEPTH * OPERAND_ROW_BYTES), x_map, full, first_channel(tile) + column % TAP_COLUMNS, pixel, corner, tap);
    }
}
