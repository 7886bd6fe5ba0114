#pragma once

// Runs of outputs in NCHW of tiles of pixels, counted through all images: a plane's. Needs _tiles_pixels.cuh and the family's constants.

constexpr int LONGEST_RUN = EPILOGUE_N < PIXELS ? EPILOGUE_N : PIXELS;

// Calls store(column, count, first) of each run in the EPILOGUE_N columns of a tile that begin `further` on: its first column among them, its
// outputs, and where the first one is in channel 0 of y.
template <class Store>
__device__ __forceinline__ void for_each_run(const Place& at, int further, int n, const Store& store) {
    const int begin = at.column + further, end = min(begin + EPILOGUE_N, n * PIXELS);
    for (int pixel = begin, count; pixel < end; pixel += count) {
        const int in_plane = pixel % PIXELS;
        count = min(end - pixel, PIXELS - in_plane);
        store(pixel - begin, count, pixel / PIXELS * (static_cast<long long>(K) * PIXELS) + in_plane);
    }
}
