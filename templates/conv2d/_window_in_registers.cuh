#pragma once

// A thread's inputs stay in registers, for all output channels. Needs load and the family's constants.

using Window = float[WINDOW_ROWS][ROW_INPUTS];

__device__ __forceinline__ void load_window(Window& input, const float* window) {
#pragma unroll
    for (int i = 0; i < WINDOW_ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < ROW_INPUTS; j += LOAD) load<LOAD>(input[i] + j, window + i * W + j);
    }
}

// A thread's outputs of one output channel.
__device__ __forceinline__ void compute(float (&accumulator)[ROWS][COLUMNS], const Window& input, const float*,
                                        const float (&filter)[FILTER_FLOATS]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int s = 0; s < S; ++s) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const float value = input[i + r][j + s], factor = filter[r * S + s];
                    accumulator[i][j] = r == 0 && s == 0 ? factor * value : fmaf(factor, value, accumulator[i][j]);
                }
            }
        }
    }
}
