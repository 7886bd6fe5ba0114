#pragma once
#include "_im2col_sm90.cuh"

// Tiles of TILE_N pixels, counted through all images: each stage has the pixels of one tap. Needs _mainloop_sm90.cuh,
// _epilogue_sm90.cuh, first_channel and the family's constants.

__device__ __forceinline__ int tiles_of(int n) { return (n * PIXELS + TILE_N - 1) / TILE_N * TILES_M; }

using Boxes = Boxes2d;

// Where a tile's outputs begin, from its pixel `first` on.
__device__ __forceinline__ Place place_of(int index, int first) { return {index / TILES_M * TILE_N + first, 0, 0}; }

// The operand of a stage's pixels, from `first` on.
__device__ __forceinline__ unsigned long long pixels_operand(const unsigned char* pixels, int first) { return wgmma_descriptor(pixels + first * OPERAND_ROW_BYTES); }

// Of a tile; there are no windows.
struct Window {
    __device__ __forceinline__ void begin_tile() {}
    __device__ __forceinline__ void skip_tile() {}
};

using Mma = StagedMma<STAGE_BYTES, K_BLOCKS, AS_STORED>;

// No windows, no zeros behind them.
__device__ __forceinline__ void clear_behind_windows(unsigned char*) {}
