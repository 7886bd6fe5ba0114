#pragma once
#include "_im2col_boxes.cuh"

// Steps of DEPTH pixels, of which a box of x is loaded for each tap anew. Needs _mainloop_sm90.cuh and the family's constants.

constexpr int LOADED_BYTES = STAGE_BYTES;
using Mma = StagedMma<STAGE_BYTES, DEPTH / 16, true, true>;

// Of a tile, for n images.
__device__ __forceinline__ int steps_of_tile(int n) {
    return static_cast<int>((static_cast<long long>(n) * (O * P * Q) + DEPTH - 1) / DEPTH);
}

// Loads a step's boxes of dy, then of x. Behind the last tap the last one comes again, for columns that are not stored.
template <class Tile>
__device__ __forceinline__ void load_step(unsigned char* stage, Barrier* full, const TensorMap& x_map, const TensorMap& dy_map, const Tile& tile, int step) {
    constexpr int BOX_BYTES = DEPTH * OPERAND_ROW_BYTES;
    const int pixel = step * DEPTH;
    Corner corner = {};
    if constexpr (!POINTWISE) corner = window_corner(pixel);
#pragma unroll
    for (int i = 0; i < TILE_K / 64; ++i) tma_load(stage + i * BOX_BYTES, &dy_map, full, tile.first_k + i * 64, pixel);
#pragma unroll
    for (int i = 0; i < TILE_COLUMNS / 64; ++i) {
        const int column = tile.first_column + i * 64, tap = min(column / TAP_COLUMNS, TAPS - 1);
        load_pixels(stage + DY_BYTES + i * BOX_BYTES, x_map, full, column % TAP_COLUMNS, pixel, corner, tap);
    }
}

// The operand of a consumer's columns.
__device__ __forceinline__ unsigned long long columns_operand(const unsigned char* x, int consumer) {
    return wgmma_descriptor_transposed<DEPTH>(x + (SPLIT_COLUMNS ? consumer * (COLUMNS / 64) * (DEPTH * OPERAND_ROW_BYTES) : 0));
}

// Boxes fill a stage.
__device__ __forceinline__ void clear_behind_boxes(unsigned char*) {}
