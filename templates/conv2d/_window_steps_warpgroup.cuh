#pragma once

// Steps of MMAs of a warpgroup, of WARP_P output rows, out of a window of x in shared memory. Needs load_inputs, multiply and the family's constants.

constexpr int LAST_ROW = (WARP_P - 1) * STRIDE_H + (R - 1) * DILATION_H;  // of input, of a lane's WARP_P output rows
using Pixels = Word[LAST_ROW + 1][4];

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
        if (needed) load_inputs(pixels[row], inputs + row * ROW_CHUNKS);
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

// accumulators += a slice's channels, of a lane's column of taps.
__device__ __forceinline__ void add_slice(Accumulators& accumulators, const Chunk* taps, const Chunk* slice_filters, int group) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const Filters* const filters = slice_filters + group * (WARP_TILES_K * 16);
    // Lanes 0 to 15 load a step's first chunk of 16 columns, the others its second.
    Pixels pixels[1 + PREFETCHED];
    const auto load = [&](int i) {
        Pixels& to = pixels[i % (1 + PREFETCHED)];
        if (i < PAIRS) {
            load_pixels<R, false>(to, taps + (lane < 16 ? chunk_at(2 * i) : chunk_at(2 * i + 1)));
        } else {
            load_pixels<ODD_STEPS, true>(to, taps + chunk_at(RUN_CHUNKS - 1) + (lane < 16 || R == 1 ? 0 : DILATION_H * ROW_CHUNKS));
        }
    };
    constexpr int LOADS_A_SLICE = PAIRS + (ODD_STEPS > 0);
    if constexpr (PREFETCHED == 1) load(0);
#pragma unroll
    for (int i = 0; i < LOADS_A_SLICE; ++i) {
        if constexpr (PREFETCHED == 0) load(i);
        const Pixels& loaded = pixels[i % (1 + PREFETCHED)];
        wgmma_begin(accumulators);
        if (i < PAIRS) {
            start_steps<R, false>(accumulators, loaded, filters + i * (R * BLOCK_TILES * 16));
        } else {
            start_steps<ODD_STEPS, true>(accumulators, loaded, filters + PAIRS * (R * BLOCK_TILES * 16));
        }
        wgmma_commit();
        if (PREFETCHED == 1 && i + 1 < LOADS_A_SLICE) load(i + 1);
        wgmma_wait(accumulators);
    }
}
