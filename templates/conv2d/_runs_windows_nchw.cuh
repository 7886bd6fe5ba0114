#pragma once

// Runs of outputs in NCHW of tiles of window rows: a row's, or those of all rows of an image where no column lies between them. Needs
// _tiles_windows.cuh and the family's constants.

constexpr int RUN_ROWS = PITCH > ROW_Q || SEGMENTS > 1 ? 1 : WINDOW_IMAGES > 1 ? IMAGE_ROWS : WINDOW_ROWS, RUN_PITCH = RUN_ROWS * PITCH;
constexpr int LONGEST_RUN = EPILOGUE_N < RUN_PITCH ? EPILOGUE_N : RUN_PITCH;

// As that of _runs_pixels_nchw.cuh.
template <class Store>
__device__ __forceinline__ void for_each_run(const Place& at, int further, int n, const Store& store) {
    const int end = further + EPILOGUE_N;
    for (int run = further / RUN_PITCH; run * RUN_PITCH < end && run * RUN_ROWS < WINDOW_ROWS; ++run) {
        const int image = at.image + (WINDOW_IMAGES > 1 ? run * RUN_ROWS / IMAGE_ROWS : 0);
        const int row = at.row + (WINDOW_IMAGES > 1 ? run * RUN_ROWS % IMAGE_ROWS : run * RUN_ROWS), segment = image / O % SEGMENTS;
        if (row >= P || image >= n * (SEGMENTS * O)) continue;
        const int columns = RUN_ROWS > 1 ? min(P - row, RUN_ROWS) * Q : min(Q, ROW_Q - segment * Q);
        const int first = max(run * RUN_PITCH, further), count = min(run * RUN_PITCH + columns, end) - first;
        const long long in_plane = (static_cast<long long>(image % O) * P + row) * ROW_Q + segment * Q + (first - run * RUN_PITCH);
        if (count > 0) store(first - further, count, image / (SEGMENTS * O) * (static_cast<long long>(K) * PIXELS) + in_plane);
    }
}
