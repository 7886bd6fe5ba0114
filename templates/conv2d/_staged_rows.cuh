#pragma once

// Windows of x whose chunks are taps of a filter row, as they lie. Needs the family's constants.
#include "_copied_chunk.cuh"

#include "_shifted_rows.cuh"

constexpr int FILLED = (TILE_Q - 1) * STEP_W / 8 + RUN_CHUNKS;  // chunks of a row

// Copies what a work tile needs of x, a slice of the channels; zeros stand for padding.
__device__ __forceinline__ void copy_inputs(Chunk* staged, const Bits* __restrict__ x, unsigned work_tile, int, int n) {
    constexpr int ROW_COPIES = FILLED * COPIES;
    // A thread copies chunks of every ROW_STEP-th row, at the same place in each.
    constexpr int ITERATIONS = (ROW_COPIES + THREADS - 1) / THREADS, ROW_STEP = ITERATIONS > 1 ? 1 : THREADS / ROW_COPIES;
    const int thread = static_cast<int>(threadIdx.x), thread_row = ITERATIONS > 1 ? 0 : thread / ROW_COPIES;
    if (thread_row >= ROW_STEP) return;
    const WorkTile from(work_tile);
    const int first_row = from.row * STRIDE_H - PAD_H + thread_row, first_column = from.column * STRIDE_W - PAD_W;
    staged += thread_row * ROW_CHUNKS;
    x += (static_cast<long long>(from.image) * H + first_row) * (W * C) + first_column * C;
    const int row_begin = PAD_W == 0 ? 0 : -first_column * C, row_end = (W - first_column) * C;
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        const int in_line = ITERATIONS > 1 ? thread + iteration * THREADS : thread % ROW_COPIES;
        if (ITERATIONS > 1 && in_line >= ROW_COPIES) continue;
        const int copy = in_line % COPIES, in_copy = in_line / COPIES;
        const int first = in_copy * 8 + copy * STEP_W % 8;  // element of the window's row
        Chunk* const line_to = staged + copy_at(copy) + in_copy;
        const Bits* const line = x + first;
        const auto inside = [&](int element) {
            return (PAD_W == 0 || first + element >= row_begin) && first + element < row_end;
        };
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
