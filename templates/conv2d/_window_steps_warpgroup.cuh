#pragma once

// Steps of MMAs of a warpgroup, of WARP_P output rows, out of a window of x in shared memory. Needs multiply and the family's constants.

constexpr int LAST_ROW = (WARP_P - 1) * STRIDE_H + (R - 1) * DILATION_H;  // of input, of a lane's WARP_P output rows
using Pixels = unsigned[LAST_ROW + 1][4];

// The row of input that a step, or a pair of rows' last chunks (ODD), takes for the first output row.
template <bool ODD>
__device__ __forceinline__ constexpr int input_row(int step) {
    return (ODD ? odd_row(step) : step) * DILATION_H;
}

// Fragments of the rows of input that COUNT steps need.
template <int COUNT, bool ODD>
__device__ __forceinline__ void load_pixels(Pixels& pixels, const Chunk* inputs) {
#pragma unroll
    for (int row = 0; row <= LAST_ROW; ++row) {
        bool needed = false;
#pragma unroll
        for (int step = 0; step < COUNT; ++step) {
#pragma unroll
            for (int i = 0; i < WARP_P; ++i) needed = needed || row == input_row<ODD>(step) + i * STRIDE_H;
        }
        if (needed) load_matrices(pixels[row], inputs + row * ROW_CHUNKS);
    }
}

// Starts accumulators += the MMAs of COUNT steps.
template <int COUNT, bool ODD>
__device__ __forceinline__ void start_steps(Accumulators& accumulators, const Pixels& pixels, const Filters* filters) {
#pragma unroll
    for (int step = 0; step < COUNT; ++step) {
#pragma unroll
        for (int i = 0; i < WARP_P; ++i) {
            multiply(accumulators[i], pixels[input_row<ODD>(step) + i * STRIDE_H], filters + step * (BLOCK_TILES * 16));
        }
    }
}
