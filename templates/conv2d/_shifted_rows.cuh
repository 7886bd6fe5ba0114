#pragma once

// Windows of x in COPIES copies, shifted, in one of which the taps of a column begin on a multiple of 16 bytes. Needs the family's constants.

// The copy that serves a tile's column is column % COPIES. It begins so many chunks late that the taps of eight neighbouring
// columns begin in different banks.
__device__ __forceinline__ constexpr int copy_at(int copy) {
    return copy * COPY_CHUNKS + (copy * STEP_W * (8 / CHUNK_TAPS) - copy * STEP_W / CHUNK_TAPS) % 8;
}

// Where the taps of a tile's column begin in a row, and a chunk of a filter row, seen from the first.
__device__ __forceinline__ constexpr int column_at(int column) { return copy_at(column % COPIES) + column * STEP_W / CHUNK_TAPS; }
__device__ __forceinline__ constexpr int chunk_at(int chunk) { return chunk; }
