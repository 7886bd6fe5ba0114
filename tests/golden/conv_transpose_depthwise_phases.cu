// conv_transpose n 2 c 16 h 9 w 12 k 16 r 3 s 4 padding_h 1 padding_w 2 groups 16 bf16 nhwc bias_relu
// conv_transpose_depthwise_phases channels=4 thread_h=2 thread_w=2 block_c=4 block_tiles=16 min_blocks=6

// y[n, o, p, q, c] = sum over the taps t, r, s that meet it of w[c, t, r, s] * x[n, d, h, w, c], where d * STRIDE_D + t * DILATION_D - PADDING_D = o,
// and likewise h and w: no matrix product; a thread sums its outputs' products in registers.
//
//   x     [N, D, H, W, C]  input; of fewer dimensions the first have size 1
//   w     [C, T, R, S]     filters
//   bias  [C]              read where EPILOGUE has one
//   z     like y           residual, added where EPILOGUE has one
//   y     [N, O, P, Q, C]  output
//   n     images N, any number
//
// A thread's tile of outputs begins at a multiple of the stride of the uncut output, so that the taps that meet each of its outputs are
// known when the kernel is compiled.
//
//   grid     block of channels, then of tiles of all images
//   block x: CHANNELS channels;  y: a tile

#include "_dtype_bf16.cuh"

#include "_epilogue.cuh"

// Problem
constexpr int C = 16, D = 1, H = 9, W = 12;
constexpr int FILTER_D = 1, R = 3, S = 4, TAPS = FILTER_D * R * S;
constexpr int O = 1, P = 9, Q = 11;
constexpr int STRIDE_D = 1, STRIDE_H = 1, STRIDE_W = 1;
constexpr int PADDING_D = 0, PADDING_H = 1, PADDING_W = 2;
constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int CHANNELS = 4, THREAD_H = 2, THREAD_W = 2;
constexpr int BLOCK_TILES = 16, MIN_BLOCKS = 6;

// Derived
constexpr int ROWS = 2, COLUMNS = 2;  // a thread's outputs
constexpr int SHIFT_H = 0, SHIFT_W = 0;  // rows and columns of the first tile that are cut off
constexpr int TILES_P = 5, TILES_Q = 6;
constexpr int BLOCKS_C = 1, THREADS_C = 4, BLOCK_CHANNELS = THREADS_C * CHANNELS;
constexpr int BEFORE_H = 2, BEFORE_W = 3;  // inputs before the one that a tile begins with
constexpr int ROW_INPUTS = 5;

using Vector = AlignedArray<T, CHANNELS>;

__device__ __forceinline__ void to_floats(float (&values)[CHANNELS], const Vector& vector) {
#pragma unroll
    for (int j = 0; j < CHANNELS; ++j) values[j] = to_float(vector.at[j]);
}

// The row of a tile that filter row r adds the i-th input row to, and the column that tap s adds the i-th input to; -1: none.
__device__ constexpr int output_row(int i, int r) {
    const int row = (i - BEFORE_H) * STRIDE_H + r * DILATION_H;
    return row >= 0 && row < ROWS ? row : -1;
}
__device__ constexpr int output_column(int i, int s) {
    const int column = (i - BEFORE_W) * STRIDE_W + s * DILATION_W;
    return column >= 0 && column < COLUMNS ? column : -1;
}

// sums += the inputs of a frame times a frame of the filters; `from` is where the first would lie.
__device__ __forceinline__ void add_frame(float (&sums)[ROWS][COLUMNS][CHANNELS], const T* __restrict__ from, int row, int column,
                                          const T (*filters)[BLOCK_CHANNELS]) {
    float filter[R * S][CHANNELS];
#pragma unroll
    for (int i = 0; i < R * S; ++i) to_floats(filter[i], *reinterpret_cast<const Vector*>(filters[i] + threadIdx.x * CHANNELS));
#pragma unroll
    for (int h = 0; h < BEFORE_H + THREAD_H; ++h) {
        Vector loaded[ROW_INPUTS] = {};
#pragma unroll
        for (int i = 0; i < ROW_INPUTS; ++i) {
            const bool inside = static_cast<unsigned>(row + h) < static_cast<unsigned>(H) && static_cast<unsigned>(column + i) < static_cast<unsigned>(W);
            if (inside) loaded[i] = *reinterpret_cast<const Vector*>(from + (h * W + i) * C);
        }
#pragma unroll
        for (int i = 0; i < ROW_INPUTS; ++i) {
            float inputs[CHANNELS];
            to_floats(inputs, loaded[i]);
#pragma unroll
            for (int tap = 0; tap < R * S; ++tap) {
                const int p = output_row(h, tap / S), q = output_column(i, tap % S);
                if (p < 0 || q < 0) continue;
#pragma unroll
                for (int j = 0; j < CHANNELS; ++j) sums[p][q][j] = fmaf(filter[tap][j], inputs[j], sums[p][q][j]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_C * BLOCK_TILES, MIN_BLOCKS)
conv_transpose_depthwise_phases(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                                T* __restrict__ y, int n) {
    __shared__ __align__(16) T filters[TAPS][BLOCK_CHANNELS];
    const int first_channel = static_cast<int>(blockIdx.x) % BLOCKS_C * BLOCK_CHANNELS;
    const int thread = static_cast<int>(threadIdx.y) * THREADS_C + static_cast<int>(threadIdx.x);
    for (int i = thread; i < TAPS * BLOCK_CHANNELS; i += THREADS_C * BLOCK_TILES) {
        if (first_channel + i / TAPS < C) filters[i % TAPS][i / TAPS] = w[first_channel * TAPS + i];
    }
    __syncthreads();
    const int channel = first_channel + static_cast<int>(threadIdx.x) * CHANNELS;
    const int tile = static_cast<int>(blockIdx.x) / BLOCKS_C * BLOCK_TILES + static_cast<int>(threadIdx.y);
    const int image = tile / (TILES_P * TILES_Q);  // with depth a frame of all videos
    if (image >= n * O || channel >= C) return;
    const int tile_p = tile / TILES_Q % TILES_P, tile_q = tile % TILES_Q;
    // The first input under the first tap.
    const int row = tile_p * THREAD_H + PADDING_H / STRIDE_H - BEFORE_H, column = tile_q * THREAD_W + PADDING_W / STRIDE_W - BEFORE_W;

    float sums[ROWS][COLUMNS][CHANNELS] = {};
#pragma unroll 1
    for (int t = 0; t < FILTER_D; ++t) {
        const int d = image % O + PADDING_D - t * DILATION_D;
        if (d < 0 || d % STRIDE_D != 0 || d / STRIDE_D >= D) continue;
        const T* const frame = x + static_cast<long long>(image / O * D + d / STRIDE_D) * (H * W * C);
        add_frame(sums, frame + (row * W + column) * C + channel, row, column, filters + t * (R * S));
    }
    const int first_p = tile_p * ROWS - SHIFT_H, first_q = tile_q * COLUMNS - SHIFT_W;
    const long long first = static_cast<long long>(image) * (P * Q * C) + (first_p * Q + first_q) * C + channel;
#pragma unroll
    for (int p = 0; p < ROWS; ++p) {
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
            if (static_cast<unsigned>(first_p + p) >= static_cast<unsigned>(P) || static_cast<unsigned>(first_q + q) >= static_cast<unsigned>(Q)) continue;
            Vector stored;
#pragma unroll
            for (int j = 0; j < CHANNELS; ++j) {
                stored.at[j] = from_float<T>(finish<EPILOGUE>(sums[p][q][j], bias, channel + j));
            }
            *reinterpret_cast<Vector*>(y + first + (p * Q + q) * C) = stored;
        }
    }
}
