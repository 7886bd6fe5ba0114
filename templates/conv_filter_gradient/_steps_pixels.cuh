#pragma once

// Steps of DEPTH pixels, of which a box of x is loaded for each tap anew. Needs _columns_*, _mainloop_sm90.cuh and the
// family's constants.

constexpr int LOADED_BYTES = STAGE_BYTES;

// Of a tile, for n images.
__device__ __forceinline__ int steps_of_tile(int n) {
    return static_cast<int>((static_cast<long long>(n) * (O * P * Q) + DEPTH - 1) / DEPTH);
}

// Loads a step's boxes of dy of the block's output channels, then of x.
template <class Tile>
__device__ __forceinline__ void load_step(unsigned char* stage, Barrier* full, const TensorMap& x_map, const TensorMap& dy_map, const Tile& tile, int step) {
    const int pixel = step * DEPTH, k = first_filter(tile) + static_cast<int>(blockIdx.x) % SHARED_K * BLOCK_K;
#pragma unroll
    for (int i = 0; i < BLOCK_K / 64; ++i) tma_load(stage + i * (DEPTH * OPERAND_ROW_BYTES), &dy_map, full, k + i * 64, pixel);
    load_columns(stage + DY_BYTES, x_map, full, tile, pixel);
}

// The operand of a consumer's columns.
__device__ __forceinline__ unsigned long long columns_operand(const unsigned char* x, int consumer) {
    return wgmma_descriptor_transposed<DEPTH>(x + (SPLIT_COLUMNS ? consumer * (COLUMNS / 64) * (DEPTH * OPERAND_ROW_BYTES) : 0));
}

// Boxes fill a stage.
__device__ __forceinline__ void clear_behind_boxes(unsigned char*) {}
