// conv2d n2 c24 11x14 k24 3x3 pad 1 groups 24 f32 nhwc
// depthwise_nhwc channels=4 thread_p=2 thread_q=2 block_c=8 block_q=8 block_p=4 unroll=window warps=16

// Depthwise convolution: each channel of y is one channel of x convolved with one filter. A thread computes ROWS x COLUMNS outputs
// of CHANNELS channels, each row of its inputs passing by once.
//
//   x         [N, H, W, C]  input
//   packed_w  [R, S, C]     filters
//   bias      [C]           read where EPILOGUE has one
//   y         [N, P, Q, C]  output
//   n         images N, any number
//
//   grid     block of channels, then of columns, of rows, image
//   block x: CHANNELS channels;  y: COLUMNS columns;  z: ROWS rows

#include "_element.cuh"

#include "_epilogue.cuh"

// Problem
using T = float;  // x, w, bias and y in memory
constexpr int C = 24, H = 11, W = 14;
constexpr int R = 3, S = 3;
constexpr int P = 11, Q = 14;
constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr auto EPILOGUE = Epilogue::none;

// Parameters
constexpr int CHANNELS = 4, ROWS = 2, COLUMNS = 2;  // a thread's outputs
constexpr int MIN_BLOCKS = 4;  // blocks that fit a multiprocessor at once: about 16 warps

// Derived
constexpr int THREADS_C = 6, THREADS_Q = 7, THREADS_P = 3;
constexpr int BLOCKS_C = 1, BLOCKS_Q = 1, BLOCKS_P = 2;
constexpr int ROW_INPUTS = (COLUMNS - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;  // columns that a thread needs of an input row
constexpr int TAPS = R * S;  // in registers

using Vector = AlignedArray<T, CHANNELS>;

extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i < C * R * S) packed_w[i] = w[i % C * (R * S) + i / C];
}

__device__ __forceinline__ void load(float (&values)[CHANNELS], const T* from) {
    const Vector loaded = *reinterpret_cast<const Vector*>(from);
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) values[i] = to_float(loaded.at[i]);
}

__device__ __forceinline__ void load_taps(float (&filter)[TAPS][CHANNELS], const T* __restrict__ packed_w) {
#pragma unroll
    for (int i = 0; i < TAPS; ++i) load(filter[i], packed_w + i * C);
}

// Of a row of x, the inputs of COLUMNS outputs; zeros outside the image.
__device__ __forceinline__ void load_row(float (&inputs)[ROW_INPUTS][CHANNELS], const T* __restrict__ image, int row, int column) {
    bool row_inside = true;
    if constexpr (PAD_H > 0) row_inside = static_cast<unsigned>(row) < static_cast<unsigned>(H);
#pragma unroll
    for (int i = 0; i < ROW_INPUTS; ++i) {
        bool inside = row_inside;
        if (i < PAD_W || (Q - COLUMNS) * STRIDE_W - PAD_W + i >= W) {
            inside = inside && static_cast<unsigned>(column + i) < static_cast<unsigned>(W);
        }
        if (inside) {
            load(inputs[i], image + (row * W + column + i) * C);
        } else {
#pragma unroll
            for (int j = 0; j < CHANNELS; ++j) inputs[i][j] = 0.0f;
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
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) {
                accumulator[q][i] = fmaf(filter[s][i], inputs[q * STRIDE_W + s * DILATION_W][i], accumulator[q][i]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_C * THREADS_Q * THREADS_P, MIN_BLOCKS)
conv2d_depthwise_nhwc(const T* __restrict__ x, const T* __restrict__ packed_w, const T* __restrict__ bias,
                      T* __restrict__ y, int n) {
    int at = static_cast<int>(blockIdx.x);
    const int channel = (at % BLOCKS_C * THREADS_C + static_cast<int>(threadIdx.x)) * CHANNELS;
    at /= BLOCKS_C;
    const int tile_q = at % BLOCKS_Q * THREADS_Q + static_cast<int>(threadIdx.y);
    at /= BLOCKS_Q;
    const int tile_p = at % BLOCKS_P * THREADS_P + static_cast<int>(threadIdx.z);
    const int image = at / BLOCKS_P;
    if (image >= n || channel >= C || tile_q * COLUMNS >= Q || tile_p * ROWS >= P) return;
    // The last tiles move up to end with the output: outputs of two threads are the same.
    const int first_p = min(tile_p * ROWS, P - ROWS), first_q = min(tile_q * COLUMNS, Q - COLUMNS);
    const int row = first_p * STRIDE_H - PAD_H, column = first_q * STRIDE_W - PAD_W;
    const T* __restrict__ const input = x + (static_cast<long long>(image) * (H * W * C) + channel);

    float accumulator[ROWS][COLUMNS][CHANNELS];
#pragma unroll
    for (int p = 0; p < ROWS; ++p) {
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) accumulator[p][q][i] = 0.0f;
        }
    }

    float filter[TAPS][CHANNELS];
    load_taps(filter, packed_w + channel);
#pragma unroll
    for (int h = 0; h < (ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1; ++h) {
        float inputs[ROW_INPUTS][CHANNELS];
        load_row(inputs, input, row + h, column);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int p = (h - r * DILATION_H) / STRIDE_H;  // the output row that filter row r sends it to
            if (h < r * DILATION_H || p >= ROWS || (h - r * DILATION_H) % STRIDE_H) continue;
            add_row(accumulator[p], inputs, filter + r * S);
        }
    }
    T* __restrict__ const output = y + (static_cast<long long>(image) * (P * Q * C) + (first_p * Q + first_q) * C + channel);
#pragma unroll
    for (int p = 0; p < ROWS; ++p) {
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
            Vector stored;
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) {
                stored.at[i] = from_float<T>(finish<EPILOGUE>(accumulator[p][q][i], bias, channel + i));
            }
            *reinterpret_cast<Vector*>(output + (p * Q + q) * C) = stored;
        }
    }
}
