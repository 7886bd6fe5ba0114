// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// image_direct thread_k=1 thread_p=2 thread_q=6 bands=1 block_k=1 images=1 rounds=1 store=bulk staging=1 min_blocks=2

// Direct convolution: a block copies IMAGES images, or one of BANDS bands of an image's rows, to shared memory while it
// computes those before; a thread computes MAPS x ROWS x COLUMNS outputs.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           not read without WITH_BIAS
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// A block goes on to the next such unit gridDim.x units away. It computes BLOCK_MAPS maps at a time, a phase.
// Their outputs are staged in shared memory and leave as one copy of contiguous bytes, while the next phase is computed.
//
//   thread  column tile, then row tile, group of MAPS maps, image

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Neighbours {
    T at[N];
};

// What happens to a finished sum before it is stored: the map's bias, then the rectifier. A NaN stays a NaN.
// Needs _element.cuh.

template <bool WITH_BIAS, bool WITH_RELU, typename T>
__device__ __forceinline__ float epilogue(float sum, const T* __restrict__ bias, int map) {
    if constexpr (WITH_BIAS) sum += to_float(bias[map]);
    if constexpr (WITH_RELU) sum = sum < 0.0f ? 0.0f : sum;
    return sum;
}

// Asynchronous copies, as instructions on the GPU and as plain copies on the CPU; a barrier of some warps of a block.
//
// copy_async: BYTES (4, 8, 16) from global to shared memory; where `inside` is false nothing is read and zeros come.
// copy_async_first: the first `read` of BYTES; zeros come for the rest.
// A thread's copies since its last commit are a group; copy_async_wait<N> waits until at most N groups are under way.
// bulk_store (sm_90): contiguous bytes from shared to global memory, by one thread; bytes and both addresses are
// multiples of 16. What threads wrote must be made visible to it: fence_bulk in each of them, a barrier, bulk_store.
// sync_threads: as __syncthreads for THREADS threads, whole warps; `id`, 1 to 15, tells barriers of a block apart.
// arrive_threads counts as well, and does not wait.

#ifdef __CUDACC__
template <int BYTES>
__device__ __forceinline__ void copy_async_first(void* shared, const void* global, int read) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read)
                     : "memory");
    }
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside = true) {
    copy_async_first<BYTES>(shared, global, inside ? BYTES : 0);
}

template <int THREADS>
__device__ __forceinline__ void sync_threads(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void arrive_threads(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the calling thread's bulk stores, but for the latest GROUPS, have read their shared memory.
template <int GROUPS>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr bool WITH_BIAS = true, WITH_RELU = true;

// Parameters
constexpr int MAPS = 1, ROWS = 2, COLUMNS = 6;  // a thread's outputs
constexpr int BANDS = 1;
constexpr int GROUPS_K = 1;  // groups of MAPS maps computed at once
constexpr int IMAGES = 1;
constexpr int ROUNDS = 1;    // tiles a thread computes one after the other
constexpr int MIN_BLOCKS = 2;  // blocks resident on a multiprocessor

// Derived
constexpr int THREADS = 32;
constexpr int BAND_P = 12;
constexpr int TILES_P = 6, TILES_Q = 2;
constexpr int TILES = IMAGES * GROUPS_K * TILES_P * TILES_Q;
constexpr int BLOCK_MAPS = MAPS * GROUPS_K, PHASES = K / BLOCK_MAPS;
constexpr int INPUT_H = 25, PITCH = 28;  // staged rows of a plane, floats of a row
constexpr int INPUT_FLOATS = 4200;  // staged at once
constexpr int ROW_INPUTS = (COLUMNS - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;  // inputs that a thread needs of a row
constexpr int LOAD = 2;  // floats of one load of staged inputs

using Inputs = Neighbours<float, LOAD>;

constexpr int FILTER_FLOATS = 632;
constexpr int FILTER_LOAD = MAPS % 4 == 0 ? 4 : MAPS % 2 == 0 ? 2 : 1;  // floats of one load of filters
using Filters = Neighbours<float, FILTER_LOAD>;

// Starts copying the input of a unit of work.
__device__ __forceinline__ void copy_inputs(float* staged, const float* __restrict__ x, int unit, int n) {
    const int first = unit / BANDS * IMAGES;
    const int row = min(unit % BANDS * BAND_P, P - BAND_P) * STRIDE_H - PAD_H;
    const float* from = x + static_cast<long long>(first) * (C * H * W);
    const int planes = IMAGES == 1 ? C : min(IMAGES, n - first) * C;
#pragma unroll 1
    for (int plane = 0; plane < planes; ++plane) {
        constexpr int WINDOW_W = (Q - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;
#pragma unroll 2
        for (int i = static_cast<int>(threadIdx.x); i < INPUT_H * WINDOW_W; i += THREADS) {
            const int at = row + i / WINDOW_W, column = i % WINDOW_W - PAD_W;
            const bool inside = static_cast<unsigned>(at) < static_cast<unsigned>(H) &&
                                static_cast<unsigned>(column) < static_cast<unsigned>(W);
            copy_async<4>(staged + (plane * INPUT_H + i / WINDOW_W) * PITCH + i % WINDOW_W,
                          inside ? from + (plane * H + at) * W + column : from, inside);
        }
    }
}

// A staged row's inputs from `first` on.
__device__ __forceinline__ void load_row(float (&inputs)[ROW_INPUTS], const float* first) {
#pragma unroll
    for (int j = 0; j < ROW_INPUTS; ++j) inputs[j] = reinterpret_cast<const Inputs*>(first)[j / LOAD].at[j % LOAD];
}

// The outputs of MAPS maps, tap by tap; filters [c][r][s][map].
__device__ __forceinline__ void compute(float (&sum)[MAPS][ROWS][COLUMNS], const float* inputs, const float* filters) {
    if constexpr (C > 1) {
#pragma unroll
        for (int m = 0; m < MAPS; ++m) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) sum[m][i][j] = 0.0f;
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
                for (int m = 0; m < MAPS; ++m) {
                    const float filter = tap[m / FILTER_LOAD].at[m % FILTER_LOAD];
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) {
                            const float value = input[i * STRIDE_H + r * DILATION_H][j * STRIDE_W + s * DILATION_W];
                            sum[m][i][j] =
                                C == 1 && r == 0 && s == 0 ? filter * value : fmaf(filter, value, sum[m][i][j]);
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
    float* const staged_inputs = filters + FILTER_FLOATS;            // [2][image][c][row][column]
    float* const staged_outputs = staged_inputs + 2 * INPUT_FLOATS;  // [image][map][row][column]
    const int thread = static_cast<int>(threadIdx.x);
    const int units = (n + IMAGES - 1) / IMAGES * BANDS;
    const int step = static_cast<int>(gridDim.x);

    int unit = static_cast<int>(blockIdx.x);
    copy_inputs(staged_inputs, x, unit, n);
    copy_async_commit();
    for (int i = thread; i < C * R * S * K; i += THREADS) filters[i % (C * R * S) * K + i / (C * R * S)] = w[i];

    copy_async_wait<0>();
    __syncthreads();

    int buffer = 0;
    float* phase_outputs = staged_outputs;
    for (; unit < units; unit += step) {
        if (unit + step < units) copy_inputs(staged_inputs + (1 - buffer) * INPUT_FLOATS, x, unit + step, n);
        copy_async_commit();
        const float* const unit_inputs = staged_inputs + buffer * INPUT_FLOATS;
        buffer = 1 - buffer;

        const int first = unit / BANDS * IMAGES;
        const int images = IMAGES == 1 ? 1 : min(IMAGES, n - first);
        const int band_row = min(unit % BANDS * BAND_P, P - BAND_P);
        float* const unit_outputs = y + static_cast<long long>(first) * (K * P * Q) + band_row * Q;

#pragma unroll 1
        for (int phase = 0; phase < PHASES; ++phase) {
#pragma unroll 1
            for (int round = 0; round < ROUNDS; ++round) {
                const int tile = thread + round * THREADS;
                // The last tiles of rows and columns move up to end with the band: outputs of two threads are the same.
                const int column = min(tile % TILES_Q * COLUMNS, Q - COLUMNS);
                const int row = min(tile / TILES_Q % TILES_P * ROWS, BAND_P - ROWS);
                const int group = GROUPS_K == 1 ? 0 : tile / (TILES_Q * TILES_P) % GROUPS_K;
                const int image = IMAGES == 1 ? 0 : tile / (TILES_Q * TILES_P * GROUPS_K);
                const bool active = tile < TILES && image < images;
                const int map = phase * BLOCK_MAPS + group * MAPS;

                float sum[MAPS][ROWS][COLUMNS];
                if (active) {
                    const float* inputs = unit_inputs + (image * (C * INPUT_H) + row * STRIDE_H) * PITCH;
                    compute(sum, inputs + column * STRIDE_W, filters + map);
                }

                if (round == 0) {
                    // What was staged before has been written.
                    bulk_store_wait_read<0>();
                    __syncthreads();
                }
                if (active) {
                    using Outputs = Neighbours<float, 1>;
                    const int first_map = image * BLOCK_MAPS + group * MAPS;
                    float* output = phase_outputs + first_map * (BAND_P * Q) + row * Q + column;
#pragma unroll
                    for (int m = 0; m < MAPS; ++m) {
#pragma unroll
                        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                            for (int j = 0; j < COLUMNS; j += 1) {
                                Outputs stored;
#pragma unroll
                                for (int l = 0; l < 1; ++l) {
                                    stored.at[l] = epilogue<WITH_BIAS, WITH_RELU>(sum[m][i][j + l], bias, map + m);
                                }
                                *reinterpret_cast<Outputs*>(output + m * (BAND_P * Q) + i * Q + j) = stored;
                            }
                        }
                    }
                }
            }
            // Contiguous runs of y: all maps of the phase, or of a band one map.
            constexpr int RUN_MAPS = BANDS == 1 ? BLOCK_MAPS : 1, RUN = RUN_MAPS * BAND_P * Q;
            constexpr int RUNS = BLOCK_MAPS / RUN_MAPS;
            if (phase == PHASES - 1) copy_async_wait<0>();  // the next unit's input is there
            fence_bulk();
            __syncthreads();
            for (int run = thread; run < images * RUNS; run += THREADS) {
                float* output = unit_outputs + (run / RUNS * K + phase * BLOCK_MAPS + run % RUNS * RUN_MAPS) * (P * Q);
                bulk_store(output, phase_outputs + run * RUN, 4 * RUN);
            }
            bulk_store_commit();
        }
    }
    bulk_store_wait_read<0>();
}
