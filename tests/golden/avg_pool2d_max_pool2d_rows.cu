// avg_pool2d n 2 c 5 h 13 w 24 r 3 s 3 stride_h 2 stride_w 2 pad_h 1 f32
// avg_pool2d_max_pool2d_rows thread_q=1 thread_p=1 vector=1 block=256

// Mean of windows, in which padding counts as zeros.
//
//   x  [n, C, H, W]  input
//   y  [n, C, P, Q]  output
//   n  any number of images
//
//   A thread has THREAD_P x THREAD_Q outputs and goes down the rows of x that they need.

#include "_dtype_f32.cuh"

// Problem
constexpr int C = 5, H = 13, W = 24, P = 7, Q = 11;
constexpr int R = 3, S = 3, STRIDE_H = 2, STRIDE_W = 2, PAD_H = 1, PAD_W = 0;

// Parameters
constexpr int THREAD_Q = 1, THREAD_P = 1, VECTOR = 1, BLOCK = 256;

// Derived
constexpr bool NHWC = 0;
constexpr int CHANNELS = 1;                          // of a thread
constexpr int TILES_Q = 11, TILES_P = 7;
constexpr int CHUNKS = C / CHANNELS;
constexpr int COLUMNS = 3;                            // of x that the outputs of a row need
constexpr int BEFORE = 0;                              // columns between a vector's beginning and the first that is needed
constexpr int ROWS = (THREAD_P - 1) * STRIDE_H + R;            // of x
constexpr int PIXEL = NHWC ? C : 1;                            // elements from one column of y to the next
constexpr int TOGETHER = 1;  // outputs of a row that are stored at once
constexpr float EMPTY = 0.0f;
using Vector = AlignedArray<T, VECTOR>;

__device__ __forceinline__ float combined(float one, float other) { return one + other; }
// What the thread needs of a row of x; EMPTY beyond its ends.
__device__ __forceinline__ void load_row(float (&inputs)[COLUMNS][CHANNELS], const T* row, int first) {
    if constexpr (NHWC) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            const int column = first + i;
            const bool inside = column >= 0 && column < W;
            Vector loaded;
            if (inside) loaded = *reinterpret_cast<const Vector*>(row + column * C);
#pragma unroll
            for (int j = 0; j < CHANNELS; ++j) inputs[i][j] = inside ? to_float(loaded.at[j]) : EMPTY;
        }
    } else {
#pragma unroll
        for (int i = 0; i < BEFORE + COLUMNS; i += VECTOR) {
            const int column = first - BEFORE + i;
            const bool inside = column >= 0 && column < W;
            Vector loaded;
            if (inside) loaded = *reinterpret_cast<const Vector*>(row + column);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                const int at = i + j - BEFORE;
                if (at >= 0 && at < COLUMNS) inputs[at][0] = inside ? to_float(loaded.at[j]) : EMPTY;
            }
        }
    }
}

extern "C" __global__ __launch_bounds__(BLOCK) void max_pool2d_rows(const T* __restrict__ x, T* __restrict__ y, int n) {
    const long long index = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x;
    constexpr int THREADS = CHUNKS * TILES_P * TILES_Q;  // of an image
    if (index >= static_cast<long long>(n) * THREADS) return;
    const long long image = index / THREADS;
    const int own = static_cast<int>(index % THREADS);
    const int first_q = (NHWC ? own / CHUNKS : own) % TILES_Q * THREAD_Q;
    const int first_p = (NHWC ? own / (CHUNKS * TILES_Q) : own / TILES_Q % TILES_P) * THREAD_P;
    const int channel = NHWC ? own % CHUNKS * CHANNELS : own / (TILES_Q * TILES_P);
    const T* const from = x + (NHWC ? image * (H * W * C) + channel : (image * C + channel) * (H * W));
    T* const to = y + (NHWC ? image * (P * Q * C) + channel : (image * C + channel) * (P * Q));
    constexpr int ROW = NHWC ? W * C : W;

    float outputs[THREAD_P][THREAD_Q][CHANNELS];
#pragma unroll
    for (int i = 0; i < THREAD_P * THREAD_Q * CHANNELS; ++i) {
        outputs[i / (THREAD_Q * CHANNELS)][i / CHANNELS % THREAD_Q][i % CHANNELS] = EMPTY;
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = first_p * STRIDE_H - PAD_H + i;
        if (row < 0 || row >= H) continue;
        float inputs[COLUMNS][CHANNELS];
        load_row(inputs, from + row * ROW, first_q * STRIDE_W - PAD_W);
#pragma unroll
        for (int p = 0; p < THREAD_P; ++p) {
            if (i < p * STRIDE_H || i >= p * STRIDE_H + R) continue;
#pragma unroll
            for (int q = 0; q < THREAD_Q; ++q) {
#pragma unroll
                for (int at = 0; at < S * CHANNELS; ++at) {
                    float& output = outputs[p][q][at % CHANNELS];
                    output = combined(output, inputs[q * STRIDE_W + at / CHANNELS][at % CHANNELS]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < THREAD_P * THREAD_Q * CHANNELS; ++i) {
        outputs[i / (THREAD_Q * CHANNELS)][i / CHANNELS % THREAD_Q][i % CHANNELS] *= 1.0f / (R * S);
    }
#pragma unroll
    for (int p = 0; p < THREAD_P; ++p) {
        if (first_p + p >= P) return;
        T* const row = to + (first_p + p) * (Q * PIXEL);
        if constexpr (TOGETHER > 1) {
            AlignedArray<T, TOGETHER> stored;
#pragma unroll
            for (int q = 0; q < THREAD_Q; ++q) stored.at[q] = from_float<T>(outputs[p][q][0]);
            reinterpret_cast<AlignedArray<T, TOGETHER>*>(row)[first_q / THREAD_Q] = stored;
        } else {
#pragma unroll
            for (int q = 0; q < THREAD_Q; ++q) {
                if (first_q + q >= Q) break;
                AlignedArray<T, CHANNELS> stored;
#pragma unroll
                for (int j = 0; j < CHANNELS; ++j) stored.at[j] = from_float<T>(outputs[p][q][j]);
                reinterpret_cast<AlignedArray<T, CHANNELS>*>(row)[(first_q + q) * (PIXEL / CHANNELS)] = stored;
            }
        }
    }
}
