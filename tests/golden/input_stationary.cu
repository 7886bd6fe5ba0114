// conv2d n3 c1 30x30 k12 5x5 f32 nchw
// input_stationary thread_p=3 thread_q=3 warps=4 thread_k=1 epilogue_stages=4 prefetch_tiles=0 min_blocks=2 producer=last filters=shared window=registers stores=staged

// y[n, k, p, q] = sum over r, s of w[k, r, s] * x[n, h, w]: no matrix product; a window of x in registers serves K output channels.
//
// Direct convolution of one channel: a thread computes ROWS x COLUMNS outputs of one output channel after the other. Their inputs stay
// in registers, or in shared memory: then it reads them for each output channel, a row at a time, and there is room for more warps.
//
//   x     [N, 1, H, W]  input
//   w     [K, 1, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// A tile row is ROWS output rows of an image. Those of all images form one list; a block takes TILE_ROWS of it at a
// time, a work tile, and goes on to the work tile gridDim.x further on. Outputs of an iteration, THREAD_K output channels, are stored by
// each thread, or staged in one of EPILOGUE_STAGES epilogue stages and leave as one copy of contiguous bytes an image and output channel,
// so that y is written in order. Nobody waits for all others: whoever starts copies learns from a barrier that all warps have staged their
// part, or have read their inputs.
//
//   thread  column tile, then tile row; then, where copies are started apart, four warps that do that

#include "_element.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_barrier.cuh"

#include "_pipeline.cuh"

#include "_registers_fixed.cuh"

// Problem
constexpr int H = 30, W = 30;
constexpr int K = 12, R = 5, S = 5;
constexpr int P = 26, Q = 26;
using EPILOGUE = Epilogue<false, false, identity>;

// Parameters
constexpr int ROWS = 3, COLUMNS = 3;  // a thread's outputs of an output channel
constexpr int WARPS = 4;                           // that compute
constexpr int THREAD_K = 1;                     // of an iteration
constexpr int EPILOGUE_STAGES = 4;       // of staged outputs
constexpr int STAGES = 1;             // pipeline stages: inputs in shared memory
constexpr int MIN_BLOCKS = 2;                 // blocks resident on a multiprocessor
constexpr bool STAGED = true;            // outputs, else stored by each thread
constexpr bool APART = false;            // warps of their own start copies, else the last warp that is ready
constexpr bool SHARED_WINDOW = false, SHARED_FILTERS = true;

// Derived
constexpr int THREADS = 128;
constexpr int BARRIER_BYTES = 80;
constexpr int TILES_P = 9, TILES_Q = 9;
constexpr int TILE_ROWS = 9;      // of a work tile
constexpr int MORE_IMAGES = 0;  // that a work tile may reach into beside its first
constexpr int STAGE_FLOATS = 932;
constexpr int PLANE_FLOATS = 704, EPILOGUE_STAGE_FLOATS = THREAD_K * PLANE_FLOATS;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 255;
constexpr int FILTER_FLOATS = 28;                          // filters of an output channel, in whole vectors
constexpr int LOAD = 1, STORE = 1;            // floats of one load of inputs, of one store
constexpr int WINDOW_ROWS = 7, ROW_INPUTS = 7;  // that a thread's outputs of an output channel follow from
[[maybe_unused]] constexpr bool ALIGNED = false;                    // a window begins at a multiple of 16 bytes

using Outputs = AlignedArray<float, STORE>;

template <int N>
__device__ __forceinline__ void load(float* to, const float* from) {
    const auto loaded = *reinterpret_cast<const AlignedArray<float, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = loaded.at[i];
}

// Filter i of those packed [output channel][r][s], in whole vectors.
__device__ __forceinline__ float packed(const float* __restrict__ w, int i) {
    const int tap = i % FILTER_FLOATS;
    return tap < R * S ? w[i / FILTER_FLOATS * (R * S) + tap] : 0.0f;
}

#include "_packed_shared.cuh"

// Rows in front of a tile row of the list, counted over all images: of output, and of input.
__device__ __forceinline__ int output_row(int tile_row) { return tile_row / TILES_P * P + tile_row % TILES_P * ROWS; }
__device__ __forceinline__ int input_row(int tile_row) { return tile_row / TILES_P * H + tile_row % TILES_P * ROWS; }

// Starts copying a work tile's inputs, by one thread.
__device__ __forceinline__ void copy_inputs(float* stage, Barrier* full, const float* __restrict__ x, int work_tile,
                                            int n) {
    const int first = work_tile * TILE_ROWS, last = min(first + TILE_ROWS, n * TILES_P) - 1;
    if (first > last) return;
    const int begin = input_row(first), end = last / TILES_P * H + min(last % TILES_P * ROWS, P - ROWS) + ROWS + R - 1;
    barrier_arrive_expect(full, 4 * W * (end - begin));
    bulk_load(stage, x + static_cast<long long>(begin) * W, 4 * W * (end - begin), full);
}

// Starts copying out the outputs of a work tile's iteration that begins with `k`, by one thread. A barrier has shown it what all have
// staged, its fence shows that to the copies: a fence may stand anywhere between the stores and a copy by the same block
// (PTX ISA, causality order).
__device__ __forceinline__ void store_outputs(float* __restrict__ y, const float* epilogue_stage, int work_tile, int k, int n) {
    fence_bulk();
    const int first = output_row(work_tile * TILE_ROWS), image = first / P, row = first - image * P;
    const int rows = min(output_row((work_tile + 1) * TILE_ROWS), n * P) - first;
    float* to = y + (static_cast<long long>(image) * K + k) * (P * Q) + row * Q;
    int copied = 0;
#pragma unroll
    for (int i = 0; i <= MORE_IMAGES; ++i) {  // what lies in each of the images
        const int left = i == 0 ? P - row : P, now = MORE_IMAGES ? min(rows - copied, left) : min(TILE_ROWS * ROWS, P);
        if (MORE_IMAGES == 0 || now > 0) {
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
                bulk_store(to + m * (P * Q), epilogue_stage + m * PLANE_FLOATS + copied * Q, now * (4 * Q));
            }
        }
        to += (left + (K - 1) * P) * Q;
        copied += now;
    }
    bulk_store_commit();
}

#include "_window_in_registers.cuh"

// Stores them, but for rows and columns that the tile before has.
__device__ __forceinline__ void store(float* output, const float (&accumulator)[ROWS][COLUMNS], int first_row, int first_column,
                                      const float* __restrict__ bias, int k) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (P % ROWS != 0 && i < first_row) continue;
#pragma unroll
        for (int j = 0; j < COLUMNS; j += STORE) {
            if (Q % COLUMNS != 0 && j < first_column) continue;
            Outputs stored;
#pragma unroll
            for (int l = 0; l < STORE; ++l) stored.at[l] = finish<EPILOGUE>(accumulator[i][j + l], bias, k);
            *reinterpret_cast<Outputs*>(output + i * Q + j) = stored;
        }
    }
}

struct Barriers {
    PipelineAsync<STAGES> inputs;            // full: they are there; empty: all warps have read them
    PipelineAsync<EPILOGUE_STAGES> outputs;  // where they are STAGED; full: all warps have staged theirs; empty: they have been copied out
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_input_stationary(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                        float* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
    float* const shared_filters = reinterpret_cast<float*>(smem + BARRIER_BYTES);  // [output channel][r][s]
    const float* const filters = filters_of(shared_filters);
    float* const stages = shared_filters + (SHARED_FILTERS ? K * FILTER_FLOATS : 0);  // [stage][row][column]

    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int work_tiles = (n * TILES_P + TILE_ROWS - 1) / TILE_ROWS, step = static_cast<int>(gridDim.x);
    const auto copy_work_tile = [&](int work_tile, int stage) {
        copy_inputs(stages + stage * STAGE_FLOATS, barriers.inputs.full + stage, x, work_tile, n);
    };
    float* const epilogue_stages = stages + STAGES * STAGE_FLOATS;  // [epilogue stage][output channel][row][column]
    const auto copy_iteration = [&](int work_tile, int iteration, int epilogue_stage) {
        store_outputs(y, epilogue_stages + epilogue_stage * EPILOGUE_STAGE_FLOATS, work_tile, iteration * THREAD_K, n);
    };
    if (thread == 0) {
        barriers.inputs.init(1, WARPS);
        if constexpr (STAGED) barriers.outputs.init(WARPS, 1);
        barrier_init_fence();
        for (int i = 0; i < STAGES; ++i) copy_work_tile(static_cast<int>(blockIdx.x) + i * step, i);
    }
    if constexpr (SHARED_FILTERS) {
        for (int i = thread; i < K * FILTER_FLOATS; i += THREADS) shared_filters[i] = packed(w, i);
    }
    __syncthreads();

    PipelineState<STAGES> state;
    PipelineState<EPILOGUE_STAGES> epilogue;
    if constexpr (APART) {
        const int block_warp = __shfl_sync(0xffffffffu, thread / 32, 0);
        if (block_warp >= WARPS) {
            warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
            if (STAGED && block_warp == WARPS && lane == 0) {  // copies outputs
                int writing = -1;                              // the buffer that is being copied out
                for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step) {
#pragma unroll 1
                    for (int iteration = 0; iteration < K / THREAD_K; ++iteration) {
                        barriers.outputs.consumer_wait(epilogue);
                        copy_iteration(work_tile, iteration, epilogue.index);
                        if (writing >= 0) {
                            bulk_store_wait_read<1>();
                            barriers.outputs.consumer_release(writing);
                        }
                        writing = epilogue.index;
                        ++epilogue;
                    }
                }
                bulk_store_wait_read<0>();
            }
            if (block_warp == WARPS + 1 && lane == 0) {  // copies inputs, of which the first STAGES are on their way
                state = PipelineState<STAGES>::of(STAGES);
                for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step) {
                    barriers.inputs.producer_acquire(state);
                    copy_work_tile(work_tile + STAGES * step, state.index);
                    ++state;
                }
            }
            return;
        }
        warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    }

    // The last tiles of an image's rows and columns move up to end with it, and begin with outputs of the tile before.
    const int tile_row = thread / TILES_Q;
    const int first_row = P % ROWS == 0 ? 0 : max(tile_row % TILES_P * ROWS - (P - ROWS), 0);
    const int tile_column = thread % TILES_Q * COLUMNS, column = min(tile_column, Q - COLUMNS);
    const int loaded_tile_row = min(tile_row, TILE_ROWS - 1);  // lanes without a tile compute, too
    const int staged_at = (output_row(tile_row) - first_row) * Q + column;

    int writing = -1;  // the buffer that this lane is copying out, where warps do not do that apart
    const auto wait_for_epilogue_stage = [&] {
        if constexpr (WARPS == 1) {
            if (lane == 0) bulk_store_wait_read<EPILOGUE_STAGES - 1>();
            __syncwarp();
        } else {
            if (writing >= 0) {
                bulk_store_wait_read<0>();
                barriers.outputs.consumer_release(writing);
                writing = -1;
            }
            barriers.outputs.producer_acquire(epilogue);
        }
    };
    const auto release_stage = [&](int work_tile) {
        fence_bulk();  // the next copy into the pipeline stage comes after these loads
        __syncwarp();
        if constexpr (APART) {
            barrier_arrive_if(barriers.inputs.empty + state.index, lane == 0);
        } else {
            if (lane == 0 && (WARPS == 1 || barrier_arrive_last(barriers.inputs.empty + state.index))) {
                copy_work_tile(work_tile + STAGES * step, state.index);
            }
        }
        ++state;
    };
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step) {
        barriers.inputs.consumer_wait(state);
        // The tile row, counted from the image in which the work tile begins: it matters where a work tile reaches into others.
        const int listed = (MORE_IMAGES ? work_tile * TILE_ROWS % TILES_P : 0) + loaded_tile_row;
        const int row = input_row(listed) - first_row - (listed - loaded_tile_row) * ROWS;
        const float* const window = stages + state.index * STAGE_FLOATS + row * W + column;
        Window input;
        load_window(input, window);
        if constexpr (!SHARED_WINDOW) release_stage(work_tile);

        const float* iteration_filters = filters;
        const int global_tile_row = work_tile * TILE_ROWS + tile_row;
        const bool exists = tile_row < TILE_ROWS && global_tile_row < n * TILES_P;
        float* output = y + static_cast<long long>(global_tile_row / TILES_P) * (K * P * Q) +
                        (global_tile_row % TILES_P * ROWS - first_row) * Q + column;
#pragma unroll 1
        for (int iteration = 0; iteration < K / THREAD_K; ++iteration) {
            // Waited for before the accumulators are there: computing and staging them is one block of code without branches.
            if constexpr (STAGED && APART) barriers.outputs.producer_acquire(epilogue);
            float* const staged = epilogue_stages + epilogue.index * EPILOGUE_STAGE_FLOATS + staged_at;
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
                float filter[FILTER_FLOATS], accumulator[ROWS][COLUMNS];
#pragma unroll
                for (int i = 0; i < FILTER_FLOATS; i += 4) load<4>(filter + i, iteration_filters + m * FILTER_FLOATS + i);
                compute(accumulator, input, window, filter);
                if constexpr (!STAGED) {
                    if (exists) store(output + m * (P * Q), accumulator, first_row, tile_column - column, bias, iteration * THREAD_K + m);
                } else {
                    if constexpr (!APART) {
                        if (m == 0) wait_for_epilogue_stage();
                        if (32 * WARPS != TILE_ROWS * TILES_Q && tile_row >= TILE_ROWS) continue;
                    }
                    store(staged + m * PLANE_FLOATS, accumulator, first_row, tile_column - column, bias, iteration * THREAD_K + m);
                }
            }
            iteration_filters += THREAD_K * FILTER_FLOATS;
            if constexpr (!STAGED) {
                output += THREAD_K * (P * Q);
            } else {
                __syncwarp();
                if constexpr (APART) {
                    barrier_arrive_if(barriers.outputs.full + epilogue.index, lane == 0);
                } else if (lane == 0 && (WARPS == 1 || barrier_arrive_last(barriers.outputs.full + epilogue.index))) {
                    copy_iteration(work_tile, iteration, epilogue.index);
                    writing = epilogue.index;
                }
                ++epilogue;
            }
        }
        if constexpr (SHARED_WINDOW) release_stage(work_tile);
    }
    if constexpr (STAGED && !APART) bulk_store_wait_read<0>();
}
