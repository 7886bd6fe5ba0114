#pragma once

// A thread's outputs, input row by input row; all taps are in registers. Needs load_taps, load_row, start, add_row, store_row.
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
        load_taps(filter, packed_w + t * (R * S * C));
#pragma unroll
        for (int h = 0; h < (ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1; ++h) {
            Words loaded[ROW_INPUTS] = {};
            float inputs[ROW_INPUTS][CHANNELS];
            load_row(loaded, input + h * (W * C), column, row_inside(row + h));
            to_floats(inputs, loaded);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int p = (h - r * DILATION_H) / STRIDE_H;  // the output row that filter row r sends it to
                if (h < r * DILATION_H || p >= ROWS || (h - r * DILATION_H) % STRIDE_H) continue;
                add_row(accumulator[p], inputs, filter + r * S);
            }
        }
    }
#pragma unroll
    for (int p = 0; p < ROWS; ++p) store_row(output + p * (Q * C), accumulator[p]);
}
