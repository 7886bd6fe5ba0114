// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// direct thread_k=1 thread_p=1 thread_q=1 block_q=16 block_p=8 block_k=1 unroll=none filters=global arithmetic=f32 images=1 restrict=True min_blocks=1

// y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, h, w]: no matrix product; a thread sums its outputs' products in registers.
//
// Direct convolution: a thread keeps THREAD_K x ROWS x COLUMNS outputs in registers and reads its inputs from global memory.
//
//   x     [N, C, H, W]           input
//   w     [K, C / GROUPS, R, S]  filters
//   bias  [K]                    read where EPILOGUE has one
//   y     [N, K, P, Q]           output
//   n     images N, any number
//
//   grid  x: (block of images * TILES_P + tile row) * TILES_Q + tile column;  y: block of THREAD_K * THREADS_K output channels
//   block x: first column of a thread;  y: row tile of ROWS rows;  z: group of THREAD_K output channels

#include "_dtype_f32.cuh"

#include "_arithmetic_f32.cuh"

#include "_epilogue.cuh"

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr int GROUPS = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int THREAD_K = 1;  // a thread's output channels,
constexpr int ROWS = 1;          // its rows, neighbours,
constexpr int COLUMNS = 1;   // and its columns, THREADS_Q apart
constexpr int THREADS_Q = 11, THREADS_P = 6, THREADS_K = 1;
constexpr int IMAGES = 1;  // images a block works through; 0: all
constexpr bool SHARED_FILTERS = false;
using Input = const T* __restrict__;
using Output = T* __restrict__;
constexpr int MIN_BLOCKS = 1;  // blocks that fit a multiprocessor at once
constexpr int UNROLL_C = 1, UNROLL_S = 1;
constexpr bool KEEP_COLUMN = false;  // a thread reads an input column once for all R taps, not once a tap
using Arithmetic = FloatArithmetic;

// Derived
using Value = Arithmetic::Value;
constexpr int LANES = Arithmetic::LANES;
constexpr int GROUP_C = C / GROUPS, GROUP_K = K / GROUPS;
constexpr int TAPS = GROUP_C * R * S;
constexpr int TILES_P = 2, TILES_Q = 1;
constexpr int TILE_Q = THREADS_Q * COLUMNS;
constexpr int THREADS = THREADS_Q * THREADS_P * THREADS_K;
constexpr int WINDOW = (ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1;  // input rows that ROWS output rows need

// Filters as they lie in w, [output channel][tap], or in shared memory, [tap][output channel of the block].
#include "_filters_global.cuh"
using Filter = T;
constexpr int K_STRIDE = SHARED_FILTERS ? 1 : TAPS, TAP_STRIDE = SHARED_FILTERS ? THREAD_K * THREADS_K : 1;

// The input at (row, column) of a plane, zero in the padding.
__device__ __forceinline__ Value input_at(const T* plane, int row, int column) {
    bool inside = true;
    if constexpr (PAD_H > 0) inside = static_cast<unsigned>(row) < static_cast<unsigned>(H);
    if constexpr (PAD_W > 0) inside = inside && static_cast<unsigned>(column) < static_cast<unsigned>(W);
    return inside ? Arithmetic::splat(plane[row * W + column]) : Arithmetic::zero();
}

// Inputs of a thread's columns: COUNT rows, STEP apart, from (row, column[]) on.
template <int STEP, int COUNT>
__device__ __forceinline__ void load(Value (&inputs)[COUNT][COLUMNS], const T* plane, int row,
                                     const int (&column)[COLUMNS], int offset) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) inputs[i][j] = input_at(plane, row + i * STEP, column[j] + offset);
    }
}

// accumulator += filters of one tap * the inputs that it meets, STEP rows apart from inputs[first] on.
template <int STEP, int COUNT>
__device__ __forceinline__ void add_tap(Value (&accumulator)[THREAD_K / LANES][ROWS][COLUMNS], const Value (&inputs)[COUNT][COLUMNS],
                                        int first, const Filter* filters) {
#pragma unroll
    for (int m = 0; m < THREAD_K / LANES; ++m) {
        const Value filter = Arithmetic::filters<K_STRIDE>(filters + m * LANES * K_STRIDE);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                accumulator[m][i][j] = Arithmetic::multiply_add(filter, inputs[first + i * STEP][j], accumulator[m][i][j]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_direct(Input x, Input w, Input bias, Output y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int tile = static_cast<int>(blockIdx.x % (TILES_P * TILES_Q));
    const int image_block = static_cast<int>(blockIdx.x / (TILES_P * TILES_Q));
    const int block_k = static_cast<int>(blockIdx.y) * (THREAD_K * THREADS_K);
    const int k = block_k + static_cast<int>(threadIdx.z) * THREAD_K;

    Arithmetic::Scalar* const staged = reinterpret_cast<Arithmetic::Scalar*>(smem);
    if constexpr (SHARED_FILTERS) {
        const int thread = static_cast<int>((threadIdx.z * THREADS_P + threadIdx.y) * THREADS_Q + threadIdx.x);
        for (int i = thread; i < THREAD_K * THREADS_K * TAPS; i += THREADS) {
            staged[i / TAPS * K_STRIDE + i % TAPS * TAP_STRIDE] = Arithmetic::scalar(w[block_k * TAPS + i]);
        }
        __syncthreads();
    }
    const Filter* const filters = filters_of(w) + k * TAPS;

    int row = (tile / TILES_Q * THREADS_P + static_cast<int>(threadIdx.y)) * ROWS;
    const int column = tile % TILES_Q * TILE_Q + static_cast<int>(threadIdx.x);
    if (row >= P || column >= Q) return;
    // The last row tile moves up to end with the output: rows that two threads compute get the same value from both.
    row = min(row, P - ROWS);

    // First input row, and the input column of each output column; a column beyond the output repeats the last one.
    const int input_row = row * STRIDE_H - PAD_H;
    int input_column[COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) input_column[j] = min(column + j * THREADS_Q, Q - 1) * STRIDE_W - PAD_W;

    const int first = IMAGES == 0 ? image_block : image_block * IMAGES;
    const int last = IMAGES == 0 ? n : IMAGES == 1 ? first + 1 : min(first + IMAGES, n);
    for (int image = first; image < last; ++image) {
        const T* const input = x + (static_cast<long long>(image) * C + k / GROUP_K * GROUP_C) * (H * W);
        Value accumulator[THREAD_K / LANES][ROWS][COLUMNS];
#pragma unroll
        for (int m = 0; m < THREAD_K / LANES; ++m) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) accumulator[m][i][j] = Arithmetic::zero();
            }
        }

#pragma unroll UNROLL_C
        for (int c = 0; c < GROUP_C; ++c) {
            const T* const plane = input + c * (H * W);
            const Filter* const plane_filters = filters + c * (R * S) * TAP_STRIDE;
            if constexpr (KEEP_COLUMN) {
#pragma unroll UNROLL_S
                for (int s = 0; s < S; ++s) {
                    Value inputs[WINDOW][COLUMNS];
                    load<1>(inputs, plane, input_row, input_column, s * DILATION_W);
#pragma unroll
                    for (int r = 0; r < R; ++r) {
                        add_tap<STRIDE_H>(accumulator, inputs, r * DILATION_H, plane_filters + (r * S + s) * TAP_STRIDE);
                    }
                }
            } else {
#pragma unroll 1
                for (int r = 0; r < R; ++r) {
#pragma unroll UNROLL_S
                    for (int s = 0; s < S; ++s) {
                        Value inputs[ROWS][COLUMNS];
                        load<STRIDE_H>(inputs, plane, input_row + r * DILATION_H, input_column, s * DILATION_W);
                        add_tap<1>(accumulator, inputs, 0, plane_filters + (r * S + s) * TAP_STRIDE);
                    }
                }
            }
        }

        T* const output = y + (static_cast<long long>(image) * K + k) * (P * Q) + row * Q + column;
#pragma unroll
        for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    if (j > 0 && column + j * THREADS_Q >= Q) continue;
                    const float value = Arithmetic::lane(accumulator[m / LANES][i][j], m % LANES);
                    output[m * (P * Q) + i * Q + j * THREADS_Q] =
                        from_float<T>(finish<EPILOGUE>(value, bias, k + m));
                }
            }
        }
    }
}
