#pragma once

// A thread's inputs stay in shared memory: it reads them for each output channel, a row at a time. Needs load and the family's constants.

struct Window {};

__device__ __forceinline__ void load_window(Window&, const float*) {}

// Row ROW of a tile's inputs, in vectors where it has whole ones.
template <int ROW>
__device__ __forceinline__ void load_row(float (&input)[ROW_INPUTS], const float* window) {
#pragma unroll
    for (int j = 0; j < ROW_INPUTS; j += LOAD) {
        const int begin = j - (ROW * W + j) % 4;  // of the vector that has input j
        if (!ALIGNED || begin < 0 || begin + 4 > ROW_INPUTS) {
            load<LOAD>(input + j, window + ROW * W + j);
        } else if (j == begin) {
            load<4>(input + j, window + ROW * W + j);
        }
    }
}

// Adds to a thread's outputs of one output channel what follows from row ROW of its inputs, and from those after it.
template <int ROW = 0>
__device__ __forceinline__ void compute(float (&accumulator)[ROWS][COLUMNS], const Window& none, const float* window,
                                        const float (&filter)[FILTER_FLOATS]) {
    if constexpr (ROW < WINDOW_ROWS) {
        asm volatile("" ::: "memory");  // else all rows are loaded at once, into as many registers
        float input[ROW_INPUTS];
        load_row<ROW>(input, window);
#pragma unroll
        for (int s = 0; s < S; ++s) {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int i = ROW - r;
                if (i < 0 || i >= ROWS) continue;
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const float value = input[j + s], factor = filter[r * S + s];
                    accumulator[i][j] = r == 0 && s == 0 ? factor * value : fmaf(factor, value, accumulator[i][j]);
                }
            }
        }
        compute<ROW + 1>(accumulator, none, window, filter);
    }
}
