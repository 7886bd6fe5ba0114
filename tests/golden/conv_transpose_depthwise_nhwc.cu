// conv_transpose n 2 c 16 h 9 w 12 k 16 r 3 s 4 padding_h 1 padding_w 2 groups 16 bf16 nhwc bias_relu
// conv_transpose_depthwise_nhwc channels=4 thread_p=2 thread_q=2 block_c=4 block_q=8 block_p=4 unroll=window warps=16 prefetch=0

// y[n, o, p, q, c] = sum over t, r, s of w[t, r, s, c] * x[n, d, h, w, c]: no matrix product; a thread sums its outputs' products in registers.
//
// Depthwise convolution: each channel of y is one channel of x convolved with one filter. A thread computes ROWS x COLUMNS outputs
// of CHANNELS channels.
//
//   x         [N, D, H, W, C]  input; of two dimensions D = T = O = 1
//   packed_w  [T, R, S, C]     filters, their taps in the opposite order: a transposed convolution
//   bias      [C]              read where EPILOGUE has one
//   y         [N, O, P, Q, C]  output
//   n         images N, any number
//
//   grid     block of channels, then of columns, of rows, frame, image
//   block x: CHANNELS channels;  y: COLUMNS columns;  z: ROWS rows

#include "_dtype_bf16.cuh"

#include "_epilogue.cuh"

// Problem
constexpr int C = 16, H = 9, W = 12;
constexpr int FILTER_D = 1, R = 3, S = 4;
constexpr int O = 1, P = 9, Q = 11;
constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 1;
[[maybe_unused]] constexpr bool PADDED_H = true;
constexpr bool DEEP = false;  // of three dimensions
constexpr int D = 1, STRIDE_D = 1, PAD_D = 0, DILATION_D = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int CHANNELS = 4, ROWS = 2, COLUMNS = 2;  // a thread's outputs
constexpr int MIN_BLOCKS = 5;  // blocks that fit a multiprocessor at once: about 16 warps

// Derived
constexpr int THREADS_C = 4, THREADS_Q = 6, THREADS_P = 3;
constexpr int BLOCKS_C = 1, BLOCKS_Q = 1, BLOCKS_P = 2;
constexpr int ROW_INPUTS = (COLUMNS - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;  // columns that a thread needs of an input row
constexpr int TAPS = R * S;  // in registers
[[maybe_unused]] constexpr int PREFETCH = 0;  // steps ahead of which input rows are brought to L2; 0: none
[[maybe_unused]] constexpr int ROW_PHASE = 0;  // rows of x that a thread passes before those it needs, to begin at a multiple of STRIDE_H
[[maybe_unused]] constexpr int OPEN = 3;  // output rows that STRIDE_H input rows reach: accumulators that are open at once

constexpr float SCALE = 1.0f;  // that EPILOGUE expects of sums: filters and bias bring it

using Vector = AlignedArray<T, CHANNELS>;
using Word = unsigned;
using Words = AlignedArray<Word, sizeof(Vector) / sizeof(Word)>;  // a Vector as it lies in memory

extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i < C * FILTER_D * R * S) packed_w[i] = w[i % C * (FILTER_D * R * S) + FILTER_D * R * S - 1 - i / C];
}

template <int N>
__device__ __forceinline__ void to_floats(float (&values)[N][CHANNELS], const Words (&loaded)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        Vector vector;
        memcpy(&vector, &loaded[i], sizeof vector);
#pragma unroll
        for (int j = 0; j < CHANNELS; ++j) values[i][j] = to_float(vector.at[j]);
    }
}

__device__ __forceinline__ void load_taps(float (&filter)[TAPS][CHANNELS], const T* __restrict__ packed_w) {
    Words loaded[TAPS];
#pragma unroll
    for (int i = 0; i < TAPS; ++i) loaded[i] = *reinterpret_cast<const Words*>(packed_w + i * C);
    to_floats(filter, loaded);
#pragma unroll
    for (int i = 0; i < TAPS; ++i) {
#pragma unroll
        for (int j = 0; j < CHANNELS; ++j) filter[i][j] *= SCALE;
    }
}

// Whether input i of a row lies in the padding whatever the thread.
__device__ constexpr bool is_padding(int i) { return COLUMNS == Q && (i < PAD_W || i - PAD_W >= W); }

// Whether all rows of x that a thread passes lie inside the image.
constexpr bool ROWS_INSIDE = !PADDED_H;
__device__ __forceinline__ bool row_inside(int row) { return ROWS_INSIDE || static_cast<unsigned>(row) < static_cast<unsigned>(H); }

// Loads those inputs of COLUMNS outputs that lie inside the image; `from` is where the first one of a row of x would lie.
__device__ __forceinline__ void load_row(Words (&inputs)[ROW_INPUTS], const T* __restrict__ from, int column, bool row_inside) {
#pragma unroll
    for (int i = 0; i < ROW_INPUTS; ++i) {
        bool inside = row_inside;
        if (i < PAD_W || (Q - COLUMNS) * STRIDE_W - PAD_W + i >= W) {
            inside = inside && static_cast<unsigned>(column + i) < static_cast<unsigned>(W);
        }
        if (inside) inputs[i] = *reinterpret_cast<const Words*>(from + i * C);
    }
}

// An output's sum begins with the bias.
template <int N>
__device__ __forceinline__ void start(float (&accumulator)[N][COLUMNS][CHANNELS], const float (&bias)[CHANNELS]) {
#pragma unroll
    for (int p = 0; p < N; ++p) {
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) accumulator[p][q][i] = bias[i];
        }
    }
}

// accumulator += what one filter row adds to an output row.
__device__ __forceinline__ void add_row(float (&accumulator)[COLUMNS][CHANNELS], const float (&inputs)[ROW_INPUTS][CHANNELS],
                                        const float (*filter)[CHANNELS]) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
            if (is_padding(q * STRIDE_W + s * DILATION_W)) continue;
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) {
                accumulator[q][i] = fmaf(filter[s][i], inputs[q * STRIDE_W + s * DILATION_W][i], accumulator[q][i]);
            }
        }
    }
}

// Sets an output row.
__device__ __forceinline__ void store_row(T* __restrict__ to, const float (&accumulator)[COLUMNS][CHANNELS]) {
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q) {
        Vector stored;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) stored.at[i] = from_float<T>(EPILOGUE::activate(accumulator[q][i]));
        *reinterpret_cast<Vector*>(to + q * C) = stored;
    }
}

#include "_input_image.cuh"

// Where a thread's first input of a frame would lie; `first` is that of the image, or of all videos.
__device__ __forceinline__ const T* input_frame(const T* first, int frame) {
    return DEEP ? first + static_cast<long long>(frame) * (H * W * C) : first;
}

#include "_depthwise_window.cuh"

extern "C" __global__ void __launch_bounds__(THREADS_C * THREADS_Q * THREADS_P, MIN_BLOCKS)
conv2d_depthwise_nhwc(const T* __restrict__ x, const T* __restrict__ packed_w, const T* __restrict__ bias,
                      T* __restrict__ y, int n) {
    int at = static_cast<int>(blockIdx.x);
    const int channel = (at % BLOCKS_C * THREADS_C + static_cast<int>(threadIdx.x)) * CHANNELS;
    at /= BLOCKS_C;
    const int tile_q = at % BLOCKS_Q * THREADS_Q + static_cast<int>(threadIdx.y);
    at /= BLOCKS_Q;
    const int tile_p = at % BLOCKS_P * THREADS_P + (THREADS_P > 1 ? static_cast<int>(threadIdx.z) : 0);
    const int image = at / BLOCKS_P;
    if (image >= n * O || channel >= C || tile_q * COLUMNS >= Q || tile_p * ROWS >= P) return;
    // The last tiles move up to end with the output: outputs of two threads are the same.
    const int first_p = min(tile_p * ROWS, P - ROWS), first_q = min(tile_q * COLUMNS, Q - COLUMNS);
    const int row = first_p * STRIDE_H - PAD_H, column = first_q * STRIDE_W - PAD_W;
    const T* __restrict__ const first = x + (static_cast<long long>(DEEP ? 0 : image) * (H * W * C) + (row * W + column) * C + channel);
    T* __restrict__ const output = y + (static_cast<long long>(image) * (P * Q * C) + (first_p * Q + first_q) * C + channel);

    float channel_bias[CHANNELS] = {};
    if constexpr (EPILOGUE::HAS_BIAS) {
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) channel_bias[i] = SCALE * to_float(bias[channel + i]);
    }
    compute(first, image, output, packed_w + channel, row, column, channel_bias);
}
