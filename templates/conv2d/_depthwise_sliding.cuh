#pragma once
#include "_ptx_prefetch.cuh"

// A thread's outputs, while input rows pass by, each once; all taps are in registers. Needs load_taps, load_row, start, add_row, store_row and the
// family's constants.

__device__ __forceinline__ void clear(Words (&inputs)[ROW_INPUTS]) {
#pragma unroll
    for (int i = 0; i < ROW_INPUTS; ++i) inputs[i] = Words{};
}

// A thread's share in bringing input rows to L2 for the threads along the channels, which have the same columns: one sector of 32 bytes
// of every COLUMNS_A_PASS-th column.
struct Prefetch {
    static constexpr int SECTOR = 32 / static_cast<int>(sizeof(T)), SECTORS = (THREADS_C * CHANNELS + SECTOR - 1) / SECTOR;
    static constexpr int COLUMNS_A_PASS = THREADS_C / SECTORS;
    int offset;   // of the thread's first sector, from its own first input of a row
    int columns;  // how many columns from the first sector's on there are to bring
    int rows;     // rows that have them: H, or 0 where there is no column

    __device__ __forceinline__ explicit Prefetch(int column) {
        const int thread = static_cast<int>(threadIdx.x), sector = thread % SECTORS * SECTOR, first = thread / SECTORS;
        const bool inside = static_cast<int>(blockIdx.x) % BLOCKS_C * (THREADS_C * CHANNELS) + sector < C;
        offset = (PAD_W + first) * C + sector - thread * CHANNELS;
        columns = first < COLUMNS_A_PASS && inside ? min(COLUMNS * STRIDE_W, W - column - PAD_W) - first : 0;
        rows = columns > 0 ? H : 0;
    }
    // `from` is where the thread's first input of the row would lie.
    __device__ __forceinline__ void bring_row(const T* __restrict__ from, int row) const {
        if (static_cast<unsigned>(row) >= static_cast<unsigned>(rows)) return;
#pragma unroll
        for (int i = 0; i < COLUMNS * STRIDE_W; i += COLUMNS_A_PASS) {
            if (i == 0 || i < columns) prefetch_l2(from + offset + i * C);
        }
    }
};

// The bias, or what an output row had before this step, one place further on. No register moves: the first product that is added reads
// the one accumulator and writes the other.
__device__ __forceinline__ void take_over(float (&accumulator)[OPEN][COLUMNS][CHANNELS], int at, const float (&bias)[CHANNELS]) {
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q) {
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) accumulator[at][q][i] = at + 1 < OPEN ? accumulator[at + 1][q][i] : bias[i];
    }
}

// The filter row that takes the h-th input row of a step to the i-th open output row; -1: none.
__device__ constexpr int filter_row(int i, int h) {
    const int tap = (OPEN - 1 - i) * STRIDE_H + h - ROW_PHASE;
    return tap >= 0 && tap % DILATION_H == 0 && tap / DILATION_H < R ? tap / DILATION_H : -1;
}

// The output column of this thread that tap s of a filter row adds an input column to; -1: none.
__device__ constexpr int output_column(int column, int s) {
    const int from = column - s * DILATION_W;
    return from >= 0 && from % STRIDE_W == 0 && from / STRIDE_W < COLUMNS ? from / STRIDE_W : -1;
}

// Adds an input row to all output rows that are open. An input's products stand in a row: registers give two operands a cycle where a
// multiply-add has three, unless one is that of the instruction before.
__device__ __forceinline__ void add_to_all(float (&accumulator)[OPEN][COLUMNS][CHANNELS], const float (&inputs)[ROW_INPUTS][CHANNELS],
                                           const float (&filter)[TAPS][CHANNELS], int h) {
#pragma unroll
    for (int j = 0; j < CHANNELS; ++j) {
#pragma unroll
        for (int column = 0; column < ROW_INPUTS; ++column) {
            if (is_padding(column)) continue;
#pragma unroll
            for (int i = 0; i < OPEN; ++i) {
                const int r = filter_row(i, h);
                if (r < 0) continue;
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    const int q = output_column(column, s);
                    if (q >= 0) accumulator[i][q][j] = fmaf(filter[r * S + s][j], inputs[column][j], accumulator[i][q][j]);
                }
            }
        }
    }
}

// Adds what the h-th input row of step t adds to the output rows that are open, and stores the one that ends. Where all of them are this
// thread's, nothing branches: the activation of the one is evaluated while products are added to the others.
template <bool ALL>
__device__ __forceinline__ void add_input_row(float (&accumulator)[OPEN][COLUMNS][CHANNELS], const float (&inputs)[ROW_INPUTS][CHANNELS],
                                              const float (&filter)[TAPS][CHANNELS], const float (&bias)[CHANNELS], T* __restrict__ to, int t, int h) {
#pragma unroll
    for (int i = 0; i < OPEN; ++i) {
        if (!ALL && static_cast<unsigned>(t - (OPEN - 1) + i) >= static_cast<unsigned>(ROWS)) continue;  // another thread's row, or none
        if (h == 0) take_over(accumulator, i, bias);
        if (!ALL && filter_row(i, h) >= 0) add_row(accumulator[i], inputs, filter + filter_row(i, h) * S);
        if (!ALL && i == 0 && h == STRIDE_H - 1) store_row(to, accumulator[0]);
    }
    if (!ALL) return;
    add_to_all(accumulator, inputs, filter, h);
    if (h == STRIDE_H - 1) store_row(to, accumulator[0]);
}

// Computes ROWS output rows, while STRIDE_H input rows a step pass by: those of step t are the first that output row t needs and the
// last for output row t - (OPEN - 1), and accumulator[i] is that of output row t - (OPEN - 1) + i. The input rows of the next step are
// loaded before this one's are used. Steps whose rows are all padding are left out, except those in which an output row would end
// before the first or begin after the last.
__device__ __forceinline__ void slide(const T* __restrict__ input, T* __restrict__ output, int row, int column, const Prefetch& prefetch,
                                      const float (&filter)[TAPS][CHANNELS], const float (&bias)[CHANNELS]) {
    row -= ROW_PHASE;
    const int begin = min(max(-row, 0) / STRIDE_H, OPEN - 1);
    const int end = max(min((H - 1 - row) / STRIDE_H + 1, ROWS + OPEN - 1), ROWS);
    row += begin * STRIDE_H;
    input += (begin * STRIDE_H - ROW_PHASE) * (W * C);
    T* __restrict__ to = output + (begin - (OPEN - 1)) * (Q * C);
    float accumulator[OPEN][COLUMNS][CHANNELS];
    start(accumulator, bias);
    Words next[STRIDE_H][ROW_INPUTS] = {};
#pragma unroll
    for (int h = 0; h < STRIDE_H; ++h) load_row(next[h], input + h * (W * C), column, begin < end && row_inside(row + h));
#pragma unroll 1
    for (int h = STRIDE_H; h < PREFETCH * STRIDE_H; ++h) prefetch.bring_row(input + h * (W * C), row + h);
#pragma unroll 1
    for (int t = begin; t < end; ++t) {
        row += STRIDE_H;
        input += STRIDE_H * W * C;
#pragma unroll
        for (int h = 0; h < STRIDE_H; ++h) {
            float inputs[ROW_INPUTS][CHANNELS];
            to_floats(inputs, next[h]);
            if (!row_inside(row + h)) clear(next[h]);
            load_row(next[h], input + h * (W * C), column, t + 1 < end && row_inside(row + h));
            if constexpr (PREFETCH > 0) {
                prefetch.bring_row(input + ((PREFETCH - 1) * STRIDE_H + h) * (W * C), row + (PREFETCH - 1) * STRIDE_H + h);
            }
            if (ROWS >= OPEN && t >= OPEN - 1 && t < ROWS) {
                add_input_row<true>(accumulator, inputs, filter, bias, to, t, h);
            } else {
                add_input_row<false>(accumulator, inputs, filter, bias, to, t, h);
            }
        }
        to += Q * C;
    }
    // Output rows whose last inputs are padding.
#pragma unroll
    for (int i = 1; i < OPEN; ++i) {
        const int p = end - OPEN + i;
        if (static_cast<unsigned>(p) < static_cast<unsigned>(ROWS)) store_row(output + p * (Q * C), accumulator[i]);
    }
}

__device__ __forceinline__ void compute(const T* __restrict__ first, int image, T* __restrict__ output, const T* __restrict__ packed_w, int row,
                                        int column, const float (&bias)[CHANNELS]) {
    float filter[TAPS][CHANNELS];
    load_taps(filter, packed_w);
    slide(DEEP ? input_frame(first, input_image(image, 0)) : first, output, row, column, Prefetch(column), filter, bias);
}
