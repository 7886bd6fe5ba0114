#pragma once

// Windows of x whose chunks are channels of a pixel. Needs the family's constants.
constexpr int WINDOW_W = (TILE_Q - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;
constexpr int PIXEL_CHUNKS = CHANNELS / (2 * CHUNK_TAPS) * 2 + 1;  // odd: of eight neighbours no two begin in the same banks

// Where the taps of a tile's column begin in a row, and a chunk of a filter row, seen from the first.
__device__ __forceinline__ constexpr int column_at(int column) { return column * (STRIDE_W * PIXEL_CHUNKS); }

__device__ __forceinline__ constexpr int chunk_at(int chunk) {
    constexpr int TAPS = CHANNELS / CHUNK_TAPS;
    return chunk / TAPS * (DILATION_W * PIXEL_CHUNKS) + chunk % TAPS;
}

constexpr int PIXEL_TAPS = CHANNELS / CHUNK_TAPS, ROW_COPIES = WINDOW_W * PIXEL_TAPS;  // chunks of a pixel, of a row of the window

// A place among those of a row of the window.
struct Line {
    int column, tap, channel;
    bool in_row;

    __device__ __forceinline__ Line(int place, int first_column, int slice)
        : column(place / PIXEL_TAPS),
          tap(place % PIXEL_TAPS * CHUNK_TAPS),
          channel(slice * CHANNELS + tap),
          in_row(!PADDED_W || static_cast<unsigned>(first_column + column) < static_cast<unsigned>(W)) {}

    // Where it lies in a staged row, and in a row of x.
    __device__ __forceinline__ int staged() const { return column * PIXEL_CHUNKS + tap / CHUNK_TAPS; }
    __device__ __forceinline__ int element() const { return column * C + channel; }
    __device__ __forceinline__ bool inside(int element) const { return in_row && (C % CHANNELS == 0 || channel + element < C); }
};

#include "_copied_window.cuh"
