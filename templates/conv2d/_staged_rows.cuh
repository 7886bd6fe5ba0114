#pragma once

// Windows of x whose chunks are taps of a filter row, as they lie. Needs the family's constants.
#include "_shifted_rows.cuh"

constexpr int FILLED = (TILE_Q - 1) * STEP_W / CHUNK_TAPS + RUN_CHUNKS, ROW_COPIES = FILLED * COPIES;  // chunks of a row, of all its copies

// A place among those of a row of the window.
struct Line {
    int copy, in_copy, first;  // element of the window's row
    int row_begin, row_end;

    __device__ __forceinline__ Line(int place, int first_column, int)
        : copy(place % COPIES),
          in_copy(place / COPIES),
          first(in_copy * CHUNK_TAPS + copy * STEP_W % CHUNK_TAPS),
          row_begin(PAD_W == 0 ? 0 : -first_column * C),
          row_end((W - first_column) * C) {}

    // Where it lies in a staged row, and in a row of x.
    __device__ __forceinline__ int staged() const { return copy_at(copy) + in_copy; }
    __device__ __forceinline__ int element() const { return first; }
    __device__ __forceinline__ bool inside(int element) const {
        return (PAD_W == 0 || first + element >= row_begin) && first + element < row_end;
    }
};

#include "_copied_window.cuh"
