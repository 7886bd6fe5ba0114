// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// image_direct thread_k=1 thread_p=2 thread_q=6 row_tiles=1 block_k=1 images=1 tiles_per_thread=1 store=bulk epilogue_stages=1 min_blocks=2

// y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, h, w]: no matrix product; an image of x in shared memory serves all of y's.
//
// Direct convolution: a block copies IMAGES images, or one of ROW_TILES row tiles of an image's rows, to shared memory while it
// computes those before; a thread computes THREAD_K x ROWS x COLUMNS outputs.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// A block goes on to the next such work tile gridDim.x work tiles away. It computes CHANNELS_AT_ONCE output channels at a time, an
// iteration. Their outputs are stored where they are computed, or staged in shared memory: then they leave as one copy of contiguous bytes,
// while the next iteration is computed (BULK), or are written in the order of y.
//
//   thread  column tile, then row tile, group of THREAD_K output channels, image

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
constexpr int THREAD_K = 1, ROWS = 2, COLUMNS = 6;  // a thread's outputs
constexpr int ROW_TILES = 1;
constexpr int BLOCK_K = 1;  // groups of THREAD_K output channels computed at once
constexpr int IMAGES = 1;
constexpr int TILES_PER_THREAD = 1;  // tiles a thread computes one after the other
constexpr int MIN_BLOCKS = 2;              // blocks resident on a multiprocessor

// Derived
constexpr int THREADS = 32;
constexpr int TILE_P = 12;
constexpr bool PADDED = true, WHOLE = ROW_TILES == 1 && !PADDED;  // images are staged as they lie
constexpr bool DIRECT = false, BULK = true;  // stores
constexpr int EPILOGUE_STAGES = 1;
constexpr int TILES_P = 6, TILES_Q = 2;
constexpr int TILES = IMAGES * BLOCK_K * TILES_P * TILES_Q;
constexpr int CHANNELS_AT_ONCE = THREAD_K * BLOCK_K, ITERATIONS = K / CHANNELS_AT_ONCE;
constexpr int INPUT_H = WHOLE ? H : 25, PITCH = 28;  // staged rows of a plane, floats of a row
constexpr int INPUT_FLOATS = 4200;  // staged at once
constexpr int ROW_INPUTS = (COLUMNS - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;  // inputs that a thread needs of a row
constexpr int OUTPUT_FLOATS = 132;  // staged at once
constexpr int COPY = 1;  // floats of one asynchronous copy
constexpr int STORE = 1, RUN_STORE = 4;  // floats of one store of outputs, of a run of them
constexpr int LOAD = 2;  // floats of one load of staged inputs

using Inputs = AlignedArray<float, LOAD>;

constexpr int FILTER_FLOATS = 632;
constexpr int FILTER_LOAD = THREAD_K % 4 == 0 ? 4 : THREAD_K % 2 == 0 ? 2 : 1;  // floats of one load of filters
using Filters = AlignedArray<float, FILTER_LOAD>;

// Starts copying VECTORS vectors of COPY floats, neighbours, all threads together.
template <int VECTORS>
__device__ __forceinline__ void copy_run(float* staged, const float* __restrict__ from) {
    const int thread = static_cast<int>(threadIdx.x);
    staged += thread * COPY;
    from += thread * COPY;
#pragma unroll 8
    for (int i = 0; i < VECTORS / THREADS; ++i) {
        copy_async<4 * COPY>(staged + i * (THREADS * COPY), from + i * (THREADS * COPY));
    }
    constexpr int COPIED = VECTORS / THREADS * THREADS;
    if (thread < VECTORS - COPIED) copy_async<4 * COPY>(staged + COPIED * COPY, from + COPIED * COPY);
}

// Starts copying the input of a work tile.
__device__ __forceinline__ void copy_inputs(float* staged, const float* __restrict__ x, int work_tile, int n) {
    const int first = work_tile / ROW_TILES * IMAGES;
    const float* from = x + static_cast<long long>(first) * (C * H * W);
    if constexpr (WHOLE) {
        const int images = IMAGES == 1 ? 1 : min(IMAGES, n - first);
        for (int image = 0; image < images; ++image) {
            copy_run<C * H * W / COPY>(staged + image * (C * H * W), from + image * (C * H * W));
        }
    } else {
        const int row = min(work_tile % ROW_TILES * TILE_P, P - TILE_P) * STRIDE_H - PAD_H;
        const int planes = IMAGES == 1 ? C : min(IMAGES, n - first) * C;
#pragma unroll 1
        for (int plane = 0; plane < planes; ++plane) {
            if constexpr (PADDED) {
                constexpr int WINDOW_W = (Q - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;
#pragma unroll 2
                for (int i = static_cast<int>(threadIdx.x); i < INPUT_H * WINDOW_W; i += THREADS) {
                    const int at = row + i / WINDOW_W, column = i % WINDOW_W - PAD_W;
                    const bool inside = static_cast<unsigned>(at) < static_cast<unsigned>(H) &&
                                        static_cast<unsigned>(column) < static_cast<unsigned>(W);
                    copy_async<4>(staged + (plane * INPUT_H + i / WINDOW_W) * PITCH + i % WINDOW_W,
                                  inside ? from + (plane * H + at) * W + column : from, inside);
                }
            } else {
                copy_run<INPUT_H * W / COPY>(staged + plane * (INPUT_H * W), from + (plane * H + row) * W);
            }
        }
    }
}

// A staged row's inputs from `first` on.
__device__ __forceinline__ void load_row(float (&inputs)[ROW_INPUTS], const float* first) {
#pragma unroll
    for (int j = 0; j < ROW_INPUTS; ++j) inputs[j] = reinterpret_cast<const Inputs*>(first)[j / LOAD].at[j % LOAD];
}

// The outputs of THREAD_K output channels, tap by tap; filters [c][r][s][output channel].
__device__ __forceinline__ void compute(float (&accumulator)[THREAD_K][ROWS][COLUMNS], const float* inputs, const float* filters) {
    if constexpr (C > 1) {
#pragma unroll
        for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) accumulator[m][i][j] = 0.0f;
            }
        }
    }
#pragma unroll 1
    for (int c = 0; c < C; ++c) {
        float input[(ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1][ROW_INPUTS];
#pragma unroll
        for (int row = 0; row < (ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1; ++row) {
            load_row(input[row], inputs + row * PITCH);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const Filters* tap = reinterpret_cast<const Filters*>(filters + (r * S + s) * K);
#pragma unroll
                for (int m = 0; m < THREAD_K; ++m) {
                    const float filter = tap[m / FILTER_LOAD].at[m % FILTER_LOAD];
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) {
                            const float value = input[i * STRIDE_H + r * DILATION_H][j * STRIDE_W + s * DILATION_W];
                            accumulator[m][i][j] =
                                C == 1 && r == 0 && s == 0 ? filter * value : fmaf(filter, value, accumulator[m][i][j]);
                        }
                    }
                }
            }
        }
        inputs += INPUT_H * PITCH;
        filters += R * S * K;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_image(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
             float* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* const filters = reinterpret_cast<float*>(smem);
    float* const staged_inputs = filters + FILTER_FLOATS;  // [2][image][c][row][column]
    float* const staged_outputs = staged_inputs + 2 * INPUT_FLOATS;  // [image][output channel][row][column]

    const int thread = static_cast<int>(threadIdx.x);
    const int work_tiles = (n + IMAGES - 1) / IMAGES * ROW_TILES;
    const int step = static_cast<int>(gridDim.x);

    int work_tile = static_cast<int>(blockIdx.x);
    copy_inputs(staged_inputs, x, work_tile, n);
    copy_async_commit();
    for (int i = thread; i < C * R * S * K; i += THREADS) filters[i % (C * R * S) * K + i / (C * R * S)] = w[i];

    copy_async_wait<0>();
    __syncthreads();

    int buffer = 0;
    float* iteration_outputs = staged_outputs;
    for (; work_tile < work_tiles; work_tile += step) {
        if (work_tile + step < work_tiles) copy_inputs(staged_inputs + (1 - buffer) * INPUT_FLOATS, x, work_tile + step, n);
        copy_async_commit();
        const float* const tile_inputs = staged_inputs + buffer * INPUT_FLOATS;
        buffer = 1 - buffer;

        const int first = work_tile / ROW_TILES * IMAGES;
        const int images = IMAGES == 1 ? 1 : min(IMAGES, n - first);
        const int tile_row = min(work_tile % ROW_TILES * TILE_P, P - TILE_P);
        float* const tile_outputs = y + static_cast<long long>(first) * (K * P * Q) + tile_row * Q;

#pragma unroll 1
        for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
#pragma unroll 1
            for (int tile_index = 0; tile_index < TILES_PER_THREAD; ++tile_index) {
                const int tile = thread + tile_index * THREADS;
                // The last tiles of rows and columns move up to end with the row tile: outputs of two threads are the same.
                const int column = min(tile % TILES_Q * COLUMNS, Q - COLUMNS);
                const int row = min(tile / TILES_Q % TILES_P * ROWS, TILE_P - ROWS);
                const int group = BLOCK_K == 1 ? 0 : tile / (TILES_Q * TILES_P) % BLOCK_K;
                const int image = IMAGES == 1 ? 0 : tile / (TILES_Q * TILES_P * BLOCK_K);
                const bool active = tile < TILES && image < images;
                const int k = iteration * CHANNELS_AT_ONCE + group * THREAD_K;

                float accumulator[THREAD_K][ROWS][COLUMNS];
                if (active) {
                    const float* inputs = tile_inputs + (image * (C * INPUT_H) + row * STRIDE_H) * PITCH;
                    compute(accumulator, inputs + column * STRIDE_W, filters + k);
                }

                if constexpr (!DIRECT && EPILOGUE_STAGES == 1) {
                    if (tile_index == 0) {
                        // What was staged before has been written.
                        if constexpr (BULK) bulk_store_wait_read<0>();
                        __syncthreads();
                    }
                }
                if (active) {
                    using Outputs = AlignedArray<float, STORE>;
                    const int first_k = image * CHANNELS_AT_ONCE + group * THREAD_K;
                    constexpr int PLANE = (DIRECT ? P : TILE_P) * Q;  // outputs from an output channel to the next
                    float* const output = (DIRECT ? tile_outputs + (image * K + k) * PLANE : iteration_outputs + first_k * PLANE) + row * Q + column;
#pragma unroll
                    for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
                        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                            for (int j = 0; j < COLUMNS; j += STORE) {
                                Outputs stored;
#pragma unroll
                                for (int l = 0; l < STORE; ++l) {
                                    stored.at[l] = finish<EPILOGUE>(accumulator[m][i][j + l], bias, k + m);
                                }
                                *reinterpret_cast<Outputs*>(output + m * PLANE + i * Q + j) = stored;
                            }
                        }
                    }
                }
            }
            if constexpr (!DIRECT) {
                // Contiguous runs of y: all output channels of the iteration, or of a row tile one output channel.
                constexpr int RUN_K = ROW_TILES == 1 ? CHANNELS_AT_ONCE : 1, RUN = RUN_K * TILE_P * Q;
                constexpr int RUNS = CHANNELS_AT_ONCE / RUN_K;
                const auto run_at = [&](int run) {
                    return tile_outputs + (run / RUNS * K + iteration * CHANNELS_AT_ONCE + run % RUNS * RUN_K) * (P * Q);
                };
                if (iteration == ITERATIONS - 1) copy_async_wait<0>();  // the next work tile's input is there
                if constexpr (BULK) {
                    fence_bulk();
                    if constexpr (EPILOGUE_STAGES == 2) bulk_store_wait_read<0>();  // the other buffer has been written
                    __syncthreads();
                    for (int run = thread; run < images * RUNS; run += THREADS) bulk_store(run_at(run), iteration_outputs + run * RUN, 4 * RUN);
                    bulk_store_commit();
                } else {
                    __syncthreads();
#pragma unroll 1
                    for (int run = 0; run < images * RUNS; ++run) {
                        float* __restrict__ output = run_at(run);
                        using Outputs = AlignedArray<float, RUN_STORE>;
#pragma unroll 4
                        for (int i = thread; i < RUN / RUN_STORE; i += THREADS) {
                            reinterpret_cast<Outputs*>(output)[i] = reinterpret_cast<const Outputs*>(iteration_outputs + run * RUN)[i];
                        }
                    }
                }
                if constexpr (EPILOGUE_STAGES == 2) {
                    iteration_outputs = iteration_outputs == staged_outputs ? staged_outputs + OUTPUT_FLOATS : staged_outputs;
                }
            }
        }
        if constexpr (DIRECT) {
            copy_async_wait<0>();
            __syncthreads();
        }
    }
    if constexpr (BULK) bulk_store_wait_read<0>();
}
