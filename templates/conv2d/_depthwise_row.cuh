#pragma once

// A thread's outputs, filter row by filter row, whose taps are in registers. Needs load_taps, load_row, start, add_row, store_row.
__device__ __forceinline__ void compute(const T* __restrict__ first, int image, T* __restrict__ output, const T* __restrict__ packed_w, int row,
                                        int column, const float (&bias)[CHANNELS]) {
    float filter[TAPS][CHANNELS];
    float accumulator[ROWS][COLUMNS][CHANNELS];
    start(accumulator, bias);
#pragma unroll 1
    for (int t = 0; t < FILTER_D; ++t) {
        const int from = input_image(image, t);
        if (DEEP && from < 0) continue;
        const T* __restrict__ const input = input_frame(first, from);
#pragma unroll 1
        for (int r = 0; r < R; ++r) {
            load_taps(filter, packed_w + (t * R + r) * (S * C));
#pragma unroll
            for (int p = 0; p < ROWS; ++p) {
                const int h = p * STRIDE_H + r * DILATION_H;
                Words loaded[ROW_INPUTS] = {};
                float inputs[ROW_INPUTS][CHANNELS];
                load_row(loaded, input + h * (W * C), column, row_inside(row + h));
                to_floats(inputs, loaded);
                add_row(accumulator[p], inputs, filter);
            }
        }
    }
#pragma unroll
    for (int p = 0; p < ROWS; ++p) store_row(output + p * (Q * C), accumulator[p]);
}
