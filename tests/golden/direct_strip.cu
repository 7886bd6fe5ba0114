// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// direct_strip thread_k=1 thread_p=12 warps_q=2 warps_k=1 stage_channels=1 stages=2 min_blocks=4 filters=shared unroll=1

// y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, h, w]: no matrix product; a column of x in shared memory serves S columns of taps.
//
// Direct convolution: a lane computes THREAD_K x ROWS outputs of one output column, one input column at a time.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// The output columns of all images form one row of N * Q columns, so that no lane idles at the edge of an image. A
// block takes TILE_Q of them and one row tile of ROWS rows at a time, and goes on to the next such work tile gridDim.x work tiles
// away. Of CHANNELS channels at a time, the input columns that it needs are copied to shared memory, each column
// contiguous: a lane reads four rows at once.
//
//   grid  x: work tiles that run at once;  y: block of THREAD_K * WARPS_K output channels
//   warp  column warp, then group of THREAD_K output channels

#include "_element.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int THREAD_K = 1, ROWS = 12;  // a thread's outputs
constexpr int WARPS_Q = 2, WARPS_K = 1;
constexpr int CHANNELS = 1;  // staged at once
constexpr int STAGES = 2;
constexpr int UNROLL = 1;  // filter columns unrolled
constexpr int MIN_BLOCKS = 4;  // blocks resident on a multiprocessor

// Derived
constexpr int THREADS = 32 * WARPS_Q * WARPS_K;
constexpr int TILE_Q = 32 * WARPS_Q;
constexpr int ROW_TILES = 1;
constexpr int WINDOW = 25;  // input rows of a row tile
constexpr int PITCH = 28;  // floats of a staged column: an odd number of vectors
constexpr int IMAGE_COLUMNS = (Q - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;  // input columns of an image, padding too
constexpr int COLUMNS = 149;  // input columns staged at most
constexpr int STAGE_FLOATS = CHANNELS * COLUMNS * PITCH;
constexpr int FILTER_FLOATS = 4;  // filters of a filter column and a thread's output channels, [r][output channel]
constexpr bool SHARED_FILTERS = true;  // else read from constant memory
constexpr int FILTER_STEP = (SHARED_FILTERS ? WARPS_K : K / THREAD_K) * FILTER_FLOATS;  // to the next filter column
constexpr int PACKED_FILTERS = C * S * FILTER_STEP;  // of a block, or of all output channels
constexpr bool FIRST_SETS = C == 1;  // the first filter column sets the accumulators, which saves clearing them

using Vector = AlignedArray<float, 4>;

// Filter i of those packed [c][s][group of output channels][r][output channel], WARPS_K groups of THREAD_K output channels from channel
// `first` on.
template <int WARPS_K>
__device__ __forceinline__ float packed(const float* __restrict__ w, int first, int i) {
    const int tap = i % FILTER_FLOATS / THREAD_K, k = i / FILTER_FLOATS % WARPS_K * THREAD_K + i % FILTER_FLOATS % THREAD_K;
    const int column = i / (WARPS_K * FILTER_FLOATS);
    const bool padding = R * THREAD_K % 4 != 0 && tap >= R;
    return padding ? 0.0f : w[((first + k) * C + column / S) * (R * S) + tap * S + column % S];
}

#include "_strip_filters_shared.cuh"

// The output column that a tile of columns begins with.
struct First {
    int image, column;

    __device__ __forceinline__ explicit First(int tile)
        : image(tile / Q * TILE_Q + tile % Q * TILE_Q / Q), column(tile % Q * TILE_Q % Q) {}
};

// What a thread copies: every ROW_STEP-th row of COPY_COLUMNS columns, THREADS apart.
constexpr int COPY_COLUMNS = (COLUMNS + THREADS - 1) / THREADS;
constexpr int ROW_STEP = COPY_COLUMNS > 1 ? 1 : THREADS / COLUMNS;
constexpr int COPY_ROWS = (WINDOW + ROW_STEP - 1) / ROW_STEP;

// The work tile whose input is being copied, and where in x this thread's part of it lies.
struct Copied {
    int work_tile, chunk;
    int row;                            // input row of the thread's first copy
    const float* source[COPY_COLUMNS];  // at that row, in channel 0
    bool inside[COPY_COLUMNS];          // the column lies in an image, not in its padding

    __device__ __forceinline__ void locate(const float* __restrict__ x, int n) {
        const int thread = static_cast<int>(threadIdx.x);
        const First first(work_tile / ROW_TILES);
        row = min(work_tile % ROW_TILES * ROWS, P - ROWS) * STRIDE_H - PAD_H;
        if constexpr (COPY_COLUMNS == 1) row += thread / COLUMNS;
#pragma unroll
        for (int j = 0; j < COPY_COLUMNS; ++j) {
            const int column = COPY_COLUMNS == 1 ? thread % COLUMNS : thread + j * THREADS;
            const int of = first.image + (first.column * STRIDE_W + column) / IMAGE_COLUMNS;
            const int at = (first.column * STRIDE_W + column) % IMAGE_COLUMNS - PAD_W;
            inside[j] = of < n;
            if constexpr (PAD_W > 0) inside[j] = inside[j] && static_cast<unsigned>(at) < static_cast<unsigned>(W);
            source[j] = x + static_cast<long long>(of) * (C * H * W) + row * W + at;
        }
    }

    // Starts copying a chunk of channels into `stage`.
    __device__ __forceinline__ void start(float* stage) const {
        const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
        for (int j = 0; j < COPY_COLUMNS; ++j) {
            const int column = COPY_COLUMNS == 1 ? thread % COLUMNS : thread + j * THREADS;
            const int first_row = COPY_COLUMNS == 1 ? thread / COLUMNS : 0;
            if (COPY_COLUMNS == 1 ? first_row >= ROW_STEP : column >= COLUMNS) continue;
            float* to = stage + column * PITCH + first_row;
            const float* from = source[j] + chunk * (CHANNELS * H * W);
#pragma unroll 1
            for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
                for (int i = 0; i < COPY_ROWS; ++i) {
                    if ((i + 1) * ROW_STEP > WINDOW && first_row + i * ROW_STEP >= WINDOW) continue;
                    const unsigned at = static_cast<unsigned>(row + i * ROW_STEP);
                    const bool copied = inside[j] && (PAD_H == 0 || at < static_cast<unsigned>(H));
                    copy_async<4>(to + i * ROW_STEP, from + i * ROW_STEP * W, copied);
                }
                to += COLUMNS * PITCH;
                from += H * W;
            }
        }
    }
};

// accumulator += what one filter column of one channel adds, or = if SET.
template <bool SET>
__device__ __forceinline__ void add_column(float (&accumulator)[THREAD_K][ROWS], const float* column, const float* filters) {
    float filter[FILTER_FLOATS];
#pragma unroll
    for (int i = 0; i < FILTER_FLOATS; i += 4) {
        const Vector loaded = *reinterpret_cast<const Vector*>(filters + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) filter[i + j] = loaded.at[j];
    }
#pragma unroll
    for (int row = 0; row < WINDOW; ++row) {
        const float input = reinterpret_cast<const Vector*>(column)[row / 4].at[row % 4];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int i = (row - r * DILATION_H) / STRIDE_H;  // the output row that tap r sends it to
            if (row < r * DILATION_H || i >= ROWS || (row - r * DILATION_H) % STRIDE_H) continue;
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
                const float factor = filter[r * THREAD_K + m];
                accumulator[m][i] = SET && r == 0 ? factor * input : fmaf(factor, input, accumulator[m][i]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_strip(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
             float* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int thread = static_cast<int>(threadIdx.x);
    const int block_k = static_cast<int>(blockIdx.y) * (THREAD_K * WARPS_K);
    const int tile_column = thread / 32 % WARPS_Q * 32 + thread % 32;
    float* const block_filters = reinterpret_cast<float*>(smem);              // [c][s][group of output channels][r][output channel]
    float* const staged = block_filters + (SHARED_FILTERS ? PACKED_FILTERS : 0);  // [stage][channel][column][row]
    if constexpr (SHARED_FILTERS) {
        for (int i = thread; i < PACKED_FILTERS; i += THREADS) block_filters[i] = packed<WARPS_K>(w, block_k, i);
    }
    const int group = warp_group(thread / 32 / WARPS_Q);  // of output channels
    const float* const filters = filters_of(block_filters, block_k, group);
    const int k = block_k + group * THREAD_K;

    constexpr int CHUNKS = C / CHANNELS;
    const int work_tiles = static_cast<int>((static_cast<long long>(n) * Q + TILE_Q - 1) / TILE_Q) * ROW_TILES;
    const int step = static_cast<int>(gridDim.x);

    Copied copied;
    copied.work_tile = static_cast<int>(blockIdx.x);
    copied.chunk = 0;
    copied.locate(x, n);
    const auto copy_next = [&](int stage) {
        if (copied.work_tile < work_tiles) {
            copied.start(staged + stage * STAGE_FLOATS);
            if (++copied.chunk == CHUNKS) {
                copied.chunk = 0;
                copied.work_tile += step;
                copied.locate(x, n);
            }
        }
        copy_async_commit();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_next(stage);

    int stage = 0;
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step) {
        // This lane's output column, and where its input begins among the staged columns.
        const First first(work_tile / ROW_TILES);
        const int images_on = (first.column + tile_column) / Q;
        const int column = (first.column + tile_column) % Q;
        const int offset = (images_on * IMAGE_COLUMNS + (column - first.column) * STRIDE_W) * PITCH;

        float accumulator[THREAD_K][ROWS];
        if constexpr (!FIRST_SETS) {
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
                for (int i = 0; i < ROWS; ++i) accumulator[m][i] = 0.0f;
            }
        }

        const float* column_filters = filters;
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if constexpr (STAGES == 1) {
                __syncthreads();
                copy_next(0);
                copy_async_wait<0>();
                __syncthreads();
            } else {
                copy_async_wait<STAGES - 2>();
                __syncthreads();
                copy_next(stage == 0 ? STAGES - 1 : stage - 1);
            }
            const float* inputs = staged + stage * STAGE_FLOATS + offset;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll 1
            for (int c = 0; c < CHANNELS; ++c) {
                if constexpr (FIRST_SETS) {
                    add_column<true>(accumulator, inputs, column_filters);
                    column_filters += FILTER_STEP;
                }
#pragma unroll UNROLL
                for (int s = FIRST_SETS; s < S; ++s) {
                    add_column<false>(accumulator, inputs + s * (DILATION_W * PITCH), column_filters);
                    column_filters += FILTER_STEP;
                }
                inputs += COLUMNS * PITCH;
            }
        }

        if (first.image + images_on < n) {
            const int row = min(work_tile % ROW_TILES * ROWS, P - ROWS);
            const long long plane = static_cast<long long>(first.image + images_on) * K + k;
            float* __restrict__ output = y + plane * (P * Q) + row * Q + column;
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    output[m * (P * Q) + i * Q] = finish<EPILOGUE>(accumulator[m][i], bias, k + m);
                }
            }
        }
    }
}
