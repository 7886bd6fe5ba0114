// conv2d n3 c1 30x30 k12 5x5 f32 nchw
// mma_toeplitz thread_p=11 row_tiles=1 tiles=1 epilogue_stages=3 stages=2 min_blocks=2

// D[pair, 2k] += X[pair, s] * T[s, 2k], for each filter row: M = pairs of output columns, N = both columns of K output channels, depth = S + 1.
// A = x [N, 1, H, W], in registers.  B = T, the Toeplitz matrix of packed_w's filter row.  Tile an image or a row tile; tile space N * ROW_TILES.
//
// Convolution of one channel as matrix products: [16 pairs of output columns x taps] * [taps x 8 accumulators], on tensor cores.
// A pair is the columns q and q + 1 of a row, q even; the accumulators are those of both columns, of four output channels. With the filter
// of a row moved on by one tap for the second column, both take the same taps q to q + S of x: an even number of columns, of which
// an MMA takes eight, as they lie in x; of 16-bit elements two are a word, as they lie in x: words of x are fragments.
//
//   x         [N, 1, H, W]  input
//   packed_w  filters as the lanes of a warp take them: [tile][vector][lane][4]
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output; [N, P, Q, K] with NHWC
//   n         images N, any number
//
// A block takes whole images, or ROW_TILES row tiles of their rows, gridDim.x apart. A lane keeps its taps of THREAD_P + R - 1 rows of
// input in registers and computes tile after tile of accumulators: row r of the filter takes for output row i the fragment of input
// row i + r. Outputs of an iteration, TILES tiles, are staged in one of EPILOGUE_STAGES epilogue stages and leave as bulk copies, in the
// order of y.
//
//   warp  16 pairs of columns of THREAD_P output rows; the last two copy inputs and outputs
//   lane  pairs lane / 4 and lane / 4 + 8;  taps lane % 4 and lane % 4 + 4 (16-bit: 2 (lane % 4) and the next) of a k block;  accumulators 2 (lane % 4) and the next of a tile

#include "_words_f32.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_barrier.cuh"

#include "_pipeline.cuh"

// Problem
constexpr int H = 30, W = 30;
constexpr int K = 12, R = 5, S = 5;
constexpr int P = 26, Q = 26;
constexpr int PAD_H = 0, PAD_W = 0;
constexpr bool NHWC = false, PADDED = false;
using EPILOGUE = Epilogue<false, false, identity>;

// Parameters
constexpr int THREAD_P = 11;  // of outputs, a lane
constexpr int ROW_TILES = 1;
constexpr int TILES = 1;  // of an iteration
constexpr int EPILOGUE_STAGES = 3;  // epilogue stages
constexpr int STAGES = 2;  // pipeline stages: inputs in shared memory
constexpr int MIN_BLOCKS = 2;  // blocks resident on a multiprocessor

// Derived
constexpr int WARPS = 3, THREADS = 32 * (WARPS + 2);
constexpr int TILE_P = 26, WINDOW_H = TILE_P + R - 1;
constexpr int PAIRS_Q = Q / 2, PAIRS = 39;  // of columns: of a row, of all groups of THREAD_P rows
constexpr int SKIPPED = (THREAD_P - TILE_P % THREAD_P) % THREAD_P;  // rows of the last group that the one before has, too
constexpr int ITERATIONS = 3;
constexpr int CHUNKS = 1, K_BLOCKS = R * CHUNKS;  // of 8 taps: of a filter row, of a filter
constexpr int BLOCK_WORDS = 2;  // a lane's of a k block's filter; of its input as many for each of two pairs
constexpr int FILTER_WORDS = 12;  // a lane's of a tile, in whole vectors
constexpr int ALL_TILES = 3;
constexpr int PITCH = 30, PAIR = 2;  // words of a row of input, of a pair
constexpr int COPY_ELEMENTS = 4;  // elements copied at once
constexpr int STAGE_WORDS = 900;
constexpr int RUN_K = 1, PLANE = TILE_P * Q;  // output channels whose outputs are contiguous in y
constexpr int RUN_PITCH = 680;  // elements of a run: the next one's are staged in other banks
constexpr int PIXEL_ELEMENTS = NHWC ? K : 1;  // of y, from a pixel to the next
constexpr int UNROLL = 1;
constexpr int EPILOGUE_STAGE = 2720;  // elements

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= ALL_TILES * FILTER_WORDS * 32) return;
    const int lane = i / 4 % 32, word = i / 128 * 4 % FILTER_WORDS + i % 4;
    const int row = word / BLOCK_WORDS / CHUNKS, chunk = word / BLOCK_WORDS % CHUNKS;
    const int accumulator = i / (32 * FILTER_WORDS) * 8 + lane / 4;
    const int k = NHWC ? accumulator % K : accumulator / 2, column = NHWC ? accumulator / K : accumulator % 2;
    const auto filter = [&](int tap) {
        const int s = chunk * 8 + tap - column;
        const bool there = row < R && k < K && column < 2 && s >= 0 && s < S;
        return there ? w[(k * R + row) * S + s] : Bits{0};
    };
    if constexpr (sizeof(Bits) == 4) {
        packed_w[i] = rounded(filter(word % 2 * 4 + lane % 4));
    } else {
        packed_w[i] = word_of(filter(lane % 4 * 2), filter(lane % 4 * 2 + 1));
    }
}

// First output row of a work tile, a row tile of an image.
__device__ __forceinline__ int first_row(int work_tile) { return min(work_tile % ROW_TILES * TILE_P, P - TILE_P); }

// Starts copying a work tile's rows of input; zeros stand for rows of padding.
__device__ __forceinline__ void copy_inputs(Word* stage, const Bits* __restrict__ x, int work_tile) {
    Bits* const to = reinterpret_cast<Bits*>(stage);
    const int row = first_row(work_tile) - PAD_H;
    const Bits* const from = x + static_cast<long long>(work_tile / ROW_TILES) * (H * W) + row * W;
    if constexpr (PADDED) {
        constexpr int ROW_COPIES = W / COPY_ELEMENTS;
        for (int i = static_cast<int>(threadIdx.x % 32); i < WINDOW_H * ROW_COPIES; i += 32) {
            const int line = i / ROW_COPIES, at = i % ROW_COPIES * COPY_ELEMENTS;
            const bool inside = static_cast<unsigned>(row + line) < static_cast<unsigned>(H);
            copy_async<COPY_ELEMENTS * sizeof(Bits)>(to + line * (W + 2 * PAD_W) + PAD_W + at, from + line * W + at, inside);
        }
    } else {
        for (int i = static_cast<int>(threadIdx.x % 32) * COPY_ELEMENTS; i < WINDOW_H * W; i += 32 * COPY_ELEMENTS) {
            copy_async<COPY_ELEMENTS * sizeof(Bits)>(to + i, from + i);
        }
    }
}

using Inputs = Word[THREAD_P + R - 1][CHUNKS][2 * BLOCK_WORDS];

#include "_toeplitz_mma_f32.cuh"

struct Barriers {
    PipelineAsync<STAGES> inputs;
    PipelineAsync<EPILOGUE_STAGES> outputs;
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_mma_toeplitz(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias,
                    T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
    Chunk* const filters = reinterpret_cast<Chunk*>(&barriers + 1);                               // [tile][vector][lane]
    Word* const stages = reinterpret_cast<Word*>(filters + ALL_TILES * FILTER_WORDS * 8);  // [stage][row][column]
    T* const epilogue_stages = reinterpret_cast<T*>(stages + STAGES * STAGE_WORDS);        // [epilogue stage], as outputs lie in y

    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int work_tiles = n * ROW_TILES, step = static_cast<int>(gridDim.x);
    if (thread == 0) {
        barriers.inputs.init(32, WARPS);
        barriers.outputs.init(WARPS, 1);
        barrier_init_fence();
    }
    for (int i = thread; i < ALL_TILES * FILTER_WORDS * 8; i += THREADS) filters[i] = packed_w[i];
    if constexpr (PADDED) {
        for (int i = thread; i < STAGES * STAGE_WORDS; i += THREADS) stages[i] = Word{0};  // columns of padding stay so
    }
    __syncthreads();

    if (warp == WARPS) {
        PipelineState<STAGES> state;
        int last = -1;  // the pipeline stage that copies are on their way to
        for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step, ++state) {
            barriers.inputs.producer_acquire(state);
            copy_inputs(stages + state.index * STAGE_WORDS, x, work_tile);
            copy_async_commit();
            if (last >= 0) {
                copy_async_wait<1>();
                barriers.inputs.producer_commit(last);
            }
            last = state.index;
        }
        copy_async_wait<0>();
        if (last >= 0) barriers.inputs.producer_commit(last);
        return;
    }
    if (warp == WARPS + 1) {
        if (lane > 0) return;
        PipelineState<EPILOGUE_STAGES> epilogue;
        int last = -1;  // the buffer being copied out
        for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step) {
            T* const outputs = y + static_cast<long long>(work_tile / ROW_TILES) * (K * P * Q) + first_row(work_tile) * (Q * PIXEL_ELEMENTS);
#pragma unroll 1
            for (int iteration = 0; iteration < ITERATIONS; ++iteration, ++epilogue) {
                const T* const from = epilogue_stages + epilogue.index * EPILOGUE_STAGE;
                barriers.outputs.consumer_wait(epilogue);
                if constexpr (NHWC) {
                    bulk_store(outputs, from, TILE_P * Q * K * static_cast<int>(sizeof(T)));
                } else {
                    const int first = iteration * (4 * TILES), channels = min(4 * TILES, K - first);
                    for (int k = 0; k < channels; k += RUN_K) {
                        bulk_store(outputs + (first + k) * (P * Q), from + k / RUN_K * RUN_PITCH,
                                   RUN_K * PLANE * static_cast<int>(sizeof(T)));
                    }
                }
                bulk_store_commit();
                if (last >= 0) {
                    bulk_store_wait_read<1>();
                    barriers.outputs.consumer_release(last);
                }
                last = epilogue.index;
            }
        }
        bulk_store_wait_read<0>();
        return;
    }

    // The last group of rows moves up to end with the row tile, and begins with outputs of the group before.
    const Word* inputs_at[2];
    int output_at[2], skipped[2];  // -1 for nothing; rows
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int pair = warp * 16 + i * 8 + lane / 4, there = min(pair, PAIRS - 1);
        const int group_row = there / PAIRS_Q * THREAD_P, row = min(group_row, TILE_P - THREAD_P), column = there % PAIRS_Q;
        inputs_at[i] = stages + row * PITCH + column * PAIR;
        output_at[i] = pair < PAIRS ? (row * Q + column * 2) * PIXEL_ELEMENTS + (NHWC ? lane % 4 * 2 : 0) : -1;
        skipped[i] = group_row - row;
    }

    PipelineState<STAGES> state;
    PipelineState<EPILOGUE_STAGES> epilogue;
    for (int work_tile = static_cast<int>(blockIdx.x); work_tile < work_tiles; work_tile += step, ++state) {
        barriers.inputs.consumer_wait(state);
        Inputs inputs;
        load_inputs(inputs, {inputs_at[0] + state.index * STAGE_WORDS, inputs_at[1] + state.index * STAGE_WORDS});
        __syncwarp();
        if (lane == 0) barriers.inputs.consumer_release(state.index);
#pragma unroll 1
        for (int iteration = 0; iteration < ITERATIONS; ++iteration, ++epilogue) {
            T* const output = epilogue_stages + epilogue.index * EPILOGUE_STAGE;
            barriers.outputs.producer_acquire(epilogue);
#pragma unroll UNROLL
            for (int tile = 0; tile < TILES; ++tile) {
                Word filter[FILTER_WORDS];
#pragma unroll
                for (int i = 0; i < FILTER_WORDS; i += 4) {
                    const Chunk loaded = filters[((iteration * TILES + tile) * (FILTER_WORDS / 4) + i / 4) * 32 + lane];
#pragma unroll
                    for (int j = 0; j < 4; ++j) filter[i + j] = loaded.words[j];
                }
                const int accumulator = tile * 8 + lane % 4 * 2;
                const int staged_k = tile * 4 + lane % 4, k = iteration * (4 * TILES) + staged_k;  // of both accumulators, without NHWC
                const int first_k = NHWC ? accumulator % K : k, second_k = NHWC ? (accumulator + 1) % K : k;
                T* const tile_output = output + (NHWC ? tile * 8 : staged_k / RUN_K * RUN_PITCH + staged_k % RUN_K * PLANE);
                const bool there = K % 4 == 0 || (NHWC ? accumulator < 2 * K : k < K);
#pragma unroll
                for (int row = 0; row < THREAD_P; ++row) {
                    float accumulators[4];
                    multiply(accumulators, inputs, filter, row);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        if (!there || output_at[i] < 0 || row < SKIPPED && row < skipped[i]) continue;
                        const AlignedArray<T, 2> pair = {
                            from_float<T>(finish<EPILOGUE>(accumulators[2 * i], bias, first_k)),
                            from_float<T>(finish<EPILOGUE>(accumulators[2 * i + 1], bias, second_k)),
                        };
                        *reinterpret_cast<AlignedArray<T, 2>*>(tile_output + output_at[i] + row * (Q * PIXEL_ELEMENTS)) = pair;
                    }
                }
            }
            fence_bulk();
            __syncwarp();
            if (lane == 0) barriers.outputs.producer_commit(epilogue.index);
        }
    }
}
