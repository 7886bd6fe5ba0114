#pragma once

// Windows of x whose chunks are channels of a pixel. Needs the family's constants.
#include "_copied_chunk.cuh"

constexpr int WINDOW_W = (TILE_Q - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;
constexpr int PIXEL_CHUNKS = CHANNELS / 16 * 2 + 1;  // odd: of eight neighbours no two begin in the same banks

// Where the taps of a tile's column begin in a row, and a chunk of a filter row, seen from the first.
__device__ __forceinline__ constexpr int column_at(int column) { return column * (STRIDE_W * PIXEL_CHUNKS); }

__device__ __forceinline__ constexpr int chunk_at(int chunk) {
    constexpr int TAPS = CHANNELS / 8;
    return chunk / TAPS * (DILATION_W * PIXEL_CHUNKS) + chunk % TAPS;
}

// Copies what a work tile needs of x, a slice of the channels; zeros stand for padding.
__device__ __forceinline__ void copy_inputs(Chunk* staged, const Bits* __restrict__ x, unsigned work_tile, int slice, int n) {
    constexpr int TAPS = CHANNELS / 8, ROW_COPIES = WINDOW_W * TAPS;
    // A thread copies chunks of every ROW_STEP-th row, at the same place in each.
    constexpr int ITERATIONS = (ROW_COPIES + THREADS - 1) / THREADS, ROW_STEP = ITERATIONS > 1 ? 1 : THREADS / ROW_COPIES;
    const int thread = static_cast<int>(threadIdx.x), thread_row = ITERATIONS > 1 ? 0 : thread / ROW_COPIES;
    if (thread_row >= ROW_STEP) return;
    const WorkTile from(work_tile);
    const int first_row = from.row * STRIDE_H - PAD_H + thread_row, first_column = from.column * STRIDE_W - PAD_W;
    staged += thread_row * ROW_CHUNKS;
    x += (static_cast<long long>(from.image) * H + first_row) * (W * C) + first_column * C;
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        const int in_line = ITERATIONS > 1 ? thread + iteration * THREADS : thread % ROW_COPIES;
        if (ITERATIONS > 1 && in_line >= ROW_COPIES) continue;
        const int column = in_line / TAPS, tap = in_line % TAPS * 8;
        const int channel = slice * CHANNELS + tap;
        const bool in_row = PAD_W == 0 || static_cast<unsigned>(first_column + column) < static_cast<unsigned>(W);
        Chunk* const line_to = staged + column * PIXEL_CHUNKS + tap / 8;
        const Bits* const line = x + column * C + channel;
        const auto inside = [&](int element) { return in_row && (C % CHANNELS == 0 || channel + element < C); };
        for (int image = 0; image < IMAGES; ++image) {
#pragma unroll COPY_ELEMENTS == 1 ? 4 : 16
            for (int step = 0; step < WINDOW_H; step += ROW_STEP) {
                if (step + ROW_STEP > WINDOW_H && thread_row + step >= WINDOW_H) break;
                bool there = IMAGES == 1 || from.image + image < n;
                if constexpr (PAD_H > 0) there = there && static_cast<unsigned>(first_row + step) < static_cast<unsigned>(H);
                Chunk* const to = line_to + (image * WINDOW_H + step) * ROW_CHUNKS;
                const Bits* const chunk = line + (image * H + step) * (W * C);
                copy_chunk(to, chunk, there, inside);
            }
        }
    }
}
