// conv_filter_gradient n 3 c 7 h 9 w 8 k 7 r 3 s 3 groups 7 f32
// conv_filter_gradient_depthwise channels=1 thread_q=2 thread_r=4 row_tiles=1 block_c=8 block_segments=4 unroll=1 prefetch=0 min_blocks=6

// dw[c, t, r, s] = sum over n, o, p, q of dy[n, o, p, q, c] * x[n, d, h, w, c]: no matrix product; a thread keeps the sums of its channels and
// filter rows in registers.
//
//   x          [N, D, H, W, C]     input; of fewer dimensions the first have size 1
//   dy         [N, O, P, Q, C]     gradient of the output
//   dw         [C, T, R, S]        gradient of the filters
//   workspace  [part][T, R, S, C]  sums of a part of the segments
//   n          images N, any number
//
// A segment is COLUMNS columns of a row tile of dy. A thread goes down its rows: a row of x is loaded once, and is multiplied by all OPEN rows of
// dy that meet it under some filter row. The sums of a block's threads are added in shared memory, and those of the parts by a second launch, both in a
// fixed order.
//
//   grid     x: an equal part of the segments;  y: block of channels;  z: tile of rows of a filter frame
//   block x: CHANNELS channels;  y: a segment at a time

#include "_dtype_f32.cuh"

#include "_ptx_dependent_stage.cuh"

#include "_ptx_prefetch.cuh"

// Problem
constexpr int C = 7, D = 1, H = 9, W = 8;
constexpr int R = 3, S = 3;
constexpr int O = 1, P = 7, Q = 6;
constexpr int STRIDE_D = 1, STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_D = 0, PAD_H = 0, PAD_W = 0;
constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;

// Parameters
constexpr int CHANNELS = 1, COLUMNS = 2;
constexpr int ROWS_R = 3;  // filter rows of a thread
constexpr int ROW_TILES = 1, ROWS = 7;
constexpr int UNROLL = 1, PREFETCH = 0, MIN_BLOCKS = 6;

// Derived
constexpr int THREADS_C = 7, BLOCK_SEGMENTS = 4, BLOCK_CHANNELS = THREADS_C * CHANNELS;
constexpr int TILES_R = 1;  // of a frame
constexpr int TILES_Q = 3, FRAME_SEGMENTS = ROW_TILES * TILES_Q;
constexpr int OPEN = 3;  // rows of dy that a row of x meets
constexpr int ROW_INPUTS = 4;  // columns of x that a segment meets
constexpr int TAPS = 9;

using Vector = AlignedArray<T, CHANNELS>;
using Word = unsigned;
using Words = AlignedArray<Word, sizeof(Vector) / sizeof(Word)>;  // a Vector as it lies in memory
using Sums = AlignedArray<float, CHANNELS>;

__device__ __forceinline__ void to_floats(float (&values)[CHANNELS], const Words& loaded) {
    Vector vector;
    memcpy(&vector, &loaded, sizeof vector);
#pragma unroll
    for (int j = 0; j < CHANNELS; ++j) values[j] = to_float(vector.at[j]);
}

// The filter row under which row h of a step of x meets the i-th open row of dy; -1: none.
__device__ constexpr int filter_row(int i, int h) {
    const int offset = i * STRIDE_H + h;
    return offset % DILATION_H == 0 && offset / DILATION_H < ROWS_R ? offset / DILATION_H : -1;
}

// Whether row h of a step of x meets a row of dy.
__device__ constexpr bool is_read(int h) {
    for (int i = 0; i < OPEN; ++i) {
        if (filter_row(i, h) >= 0) return true;
    }
    return false;
}

// Whether column i of a segment's columns of x lies in the padding whatever the segment.
__device__ constexpr bool is_padding(int i) { return COLUMNS == Q && (i < PAD_W || i - PAD_W >= W); }

// Loads the columns of a row of x that lie inside the image; `from` is where the first would lie.
__device__ __forceinline__ void load_inputs(Words (&inputs)[ROW_INPUTS], const T* __restrict__ from, int column) {
#pragma unroll
    for (int i = 0; i < ROW_INPUTS; ++i) {
        const bool always = i >= PAD_W && (TILES_Q * COLUMNS - COLUMNS) * STRIDE_W - PAD_W + i < W;
        if (is_padding(i)) continue;
        if (always || static_cast<unsigned>(column + i) < static_cast<unsigned>(W)) inputs[i] = *reinterpret_cast<const Words*>(from + i * C);
    }
}

// Loads a segment's columns of a row of dy; `columns` of them exist.
__device__ __forceinline__ void load_gradients(Words (&gradients)[COLUMNS], const T* __restrict__ from, int columns) {
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q) {
        if (Q % COLUMNS == 0 || q < columns) gradients[q] = *reinterpret_cast<const Words*>(from + q * C);
    }
}

// Brings those of N columns that exist to L2. Threads that read a sector of 32 bytes share them.
template <int N>
__device__ __forceinline__ void prefetch_columns(const T* __restrict__ from, int columns) {
    constexpr int SHARED = 32 / static_cast<int>(sizeof(Vector));
    const int first = static_cast<int>(threadIdx.x) % SHARED;
#pragma unroll
    for (int i = 0; i < N; i += SHARED) {
        if (first + i < min(N, columns)) prefetch_l2(from + (first + i) * C);
    }
}

// sums += a row of x times the rows of dy that it meets. Products with the same input follow each other: registers give two operands a cycle
// where a multiply-add has three, unless one is that of the instruction before.
__device__ __forceinline__ void add_row(float (&sums)[ROWS_R][S][CHANNELS], const float (&open)[OPEN][COLUMNS][CHANNELS],
                                        const float (&inputs)[ROW_INPUTS][CHANNELS], int h) {
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
                    const int from = column - s * DILATION_W, q = from / STRIDE_W;
                    if (from < 0 || from % STRIDE_W != 0 || q >= COLUMNS) continue;
                    sums[r][s][j] = fmaf(inputs[column][j], open[i][q][j], sums[r][s][j]);
                }
            }
        }
    }
}

// Adds a segment: in step t, row t of dy joins the open rows, and STRIDE_H rows of x meet them. The next step's rows are loaded before this step's
// are multiplied. After its last row of dy come rows of zeros, until the last row of x has passed.
__device__ __forceinline__ void add_segment(float (&sums)[ROWS_R][S][CHANNELS], const T* __restrict__ x, const T* __restrict__ dy, int row, int column,
                                            int rows, int columns) {
    constexpr int LAST_STEPS = OPEN - 1;
    Words next_x[STRIDE_H][ROW_INPUTS] = {}, next_dy[COLUMNS] = {};
    float open[OPEN][COLUMNS][CHANNELS] = {};
    const auto inside = [&](int of_step) { return static_cast<unsigned>(row + of_step) < static_cast<unsigned>(H); };
    load_gradients(next_dy, dy, columns);
#pragma unroll
    for (int h = 0; h < STRIDE_H; ++h) {
        if (is_read(h) && inside(h)) load_inputs(next_x[h], x + h * (W * C), column);
    }
#pragma unroll 1
    for (int first = 0; first < rows + LAST_STEPS; first += UNROLL) {
#pragma unroll
        for (int t = first; t < first + UNROLL; ++t) {
#pragma unroll
            for (int i = OPEN - 1; i > 0; --i) {
#pragma unroll
                for (int q = 0; q < COLUMNS; ++q) {
#pragma unroll
                    for (int j = 0; j < CHANNELS; ++j) open[i][q][j] = open[i - 1][q][j];
                }
            }
#pragma unroll
            for (int q = 0; q < COLUMNS; ++q) {
                if (t >= rows) next_dy[q] = Words{};
                to_floats(open[0][q], next_dy[q]);
            }
            dy += Q * C;
            if (t + 1 < rows) load_gradients(next_dy, dy, columns);
            if (PREFETCH > 0 && t + PREFETCH < rows) prefetch_columns<COLUMNS>(dy + (PREFETCH - 1) * (Q * C), columns);
#pragma unroll
            for (int h = 0; h < STRIDE_H; ++h) {
                if (!is_read(h)) continue;
                float inputs[ROW_INPUTS][CHANNELS];
#pragma unroll
                for (int i = 0; i < ROW_INPUTS; ++i) to_floats(inputs[i], next_x[h][i]);
                const bool met = inside(h);
                if (inside(STRIDE_H + h)) load_inputs(next_x[h], x + (STRIDE_H + h) * (W * C), column);
                if (PREFETCH > 0 && inside(PREFETCH * STRIDE_H + h)) {
                    prefetch_columns<COLUMNS * STRIDE_W>(x + ((PREFETCH * STRIDE_H + h) * W + PAD_W) * C, W - column - PAD_W);
                }
                if (met) add_row(sums, open, inputs, h);
            }
            row += STRIDE_H, x += STRIDE_H * W * C;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_C * BLOCK_SEGMENTS, MIN_BLOCKS)
conv_filter_gradient_depthwise(const T* __restrict__ x, const T* __restrict__ dy, float* __restrict__ workspace, int n) {
    launch_next_stage();
    const int segments = n * O * FRAME_SEGMENTS, part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
    const int first = static_cast<int>(static_cast<long long>(segments) * part / parts);
    const int last = static_cast<int>(static_cast<long long>(segments) * (part + 1) / parts);
    const int first_channel = static_cast<int>(blockIdx.y) * BLOCK_CHANNELS;
    const int filter_d = static_cast<int>(blockIdx.z) / TILES_R, first_r = static_cast<int>(blockIdx.z) % TILES_R * ROWS_R;
    const int channel = first_channel + static_cast<int>(threadIdx.x) * CHANNELS;

    float sums[ROWS_R][S][CHANNELS] = {};
#pragma unroll 1
    for (int segment = first + static_cast<int>(threadIdx.y); segment < last && channel < C; segment += BLOCK_SEGMENTS) {
        const int frame = segment / FRAME_SEGMENTS, d = frame % O * STRIDE_D - PAD_D + filter_d * DILATION_D;  // frame of dy, and of x
        if (static_cast<unsigned>(d) >= static_cast<unsigned>(D)) continue;
        const int first_p = segment / TILES_Q % ROW_TILES * ROWS, first_q = segment % TILES_Q * COLUMNS;
        const int row = first_p * STRIDE_H - PAD_H + first_r * DILATION_H, column = first_q * STRIDE_W - PAD_W;
        add_segment(sums, x + (static_cast<long long>(frame / O * D + d) * (H * W * C) + (row * W + column) * C + channel),
                    dy + (static_cast<long long>(frame) * (P * Q * C) + (first_p * Q + first_q) * C + channel), row, column, min(ROWS, P - first_p),
                    Q - first_q);
    }

    float* const to = workspace + static_cast<long long>(part) * (TAPS * C) + filter_d * (R * S * C);
    if constexpr (BLOCK_SEGMENTS == 1) {
#pragma unroll
        for (int r = 0; r < ROWS_R; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) {
                Sums vector;
#pragma unroll
                for (int j = 0; j < CHANNELS; ++j) vector.at[j] = sums[r][s][j];
                if (channel < C && first_r + r < R) *reinterpret_cast<Sums*>(to + ((first_r + r) * S + s) * C + channel) = vector;
            }
        }
    } else {
        extern __shared__ __align__(16) unsigned char smem[];
        float* const shared = reinterpret_cast<float*>(smem);  // [BLOCK_SEGMENTS][S][BLOCK_CHANNELS]
        const int thread = static_cast<int>(threadIdx.y) * THREADS_C + static_cast<int>(threadIdx.x);
#pragma unroll
        for (int r = 0; r < ROWS_R; ++r) {
            if (r > 0) __syncthreads();
#pragma unroll
            for (int s = 0; s < S; ++s) {
                Sums vector;
#pragma unroll
                for (int j = 0; j < CHANNELS; ++j) vector.at[j] = sums[r][s][j];
                *reinterpret_cast<Sums*>(shared + (threadIdx.y * S + s) * BLOCK_CHANNELS + threadIdx.x * CHANNELS) = vector;
            }
            __syncthreads();
#pragma unroll 1
            for (int i = thread; i < S * BLOCK_CHANNELS; i += THREADS_C * BLOCK_SEGMENTS) {
                const int c = first_channel + i % BLOCK_CHANNELS;
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < BLOCK_SEGMENTS; ++j) sum += shared[j * (S * BLOCK_CHANNELS) + i];
                if (c < C && first_r + r < R) to[((first_r + r) * S + i / BLOCK_CHANNELS) * C + c] = sum;
            }
        }
    }
}

// Adds the sums of all parts. Its grid has those of the first stage along x. The threads of a column share the parts of an element.
extern "C" __global__ void __launch_bounds__(256) add_parts(const float* workspace, float* dw) {
    __shared__ float shared[16][16];
    const int parts = static_cast<int>(gridDim.x), x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    const int element = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * 16 + x;
    float sum = 0.0f;
    wait_for_stage_before();
    if (element < TAPS * C) {
#pragma unroll 8
        for (int part = y; part < parts; part += 16) sum += workspace[static_cast<long long>(part) * (TAPS * C) + element];
    }
    shared[y][x] = sum;
    __syncthreads();
#pragma unroll
    for (int half = 8; half > 0; half /= 2) {
        if (y < half) shared[y][x] += shared[y + half][x];
        __syncthreads();
    }
    if (y == 0 && element < TAPS * C) dw[element % C * TAPS + element / C] = shared[0][x];
}
