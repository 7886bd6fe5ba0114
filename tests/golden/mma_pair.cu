// conv2d n2 c3 9x11 k5 3x3 f32 nchw
// mma_pair precision=tf32 mma_q=2 thread_p=5 thread_q=1 channel_groups=1 commit_rows=2 row_tiles=1 consumer_warpgroups=2 cooperating_warpgroups=1 stages=4 epilogue_stages=3 register_prefetch=1 min_blocks=1

// D[npq, k] = sum over c, r, s of X[npq, crs] * W[crs, k]: M = strips of output columns, N = K output channels of MMA_Q columns, depth = C*R*S.
// A = x [N, C, H, W], planes in shared memory.  B = packed_w, in shared memory.  Tile an image or one of its ROW_TILES; tile space N * ROW_TILES.
//
// Convolution as matrix products of warpgroups (wgmma): [64 output pixels x taps] * [taps x output channels], or with MMA_Q = 2
// [64 pairs of output columns x taps] * [taps x accumulators]. A pair is the columns q and q + 1 of a row, q even; the accumulators are those
// of both columns, of all output channels. With the filter of a row moved on by one tap for the second column, both take the same taps q to
// q + S of x, which lie there as an MMA takes them. Depth is four channels by two words: taps of f32, else pairs of taps.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as MMAs take them: [iteration][step][tile][half][accumulator][channel]
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// A block takes whole images, or ROW_TILES row tiles of their rows, gridDim.x apart, and its consumer warpgroups take them in turn,
// COOPERATING_WARPGROUPS consumer warpgroups each, which share its iterations.
// A lane loads a row of its strip's inputs once, for all output rows that need it. Outputs are staged in EPILOGUE_STAGES epilogue stages
// and leave as runs of rows, one for each output channel.
//
//   consumer  64 strips at once, of THREAD_P rows and THREAD_Q times MMA_Q columns each
//   lane  strips lane / 4 and lane / 4 + 8 of its warp's 16;  channel lane % 4 of a group;  accumulators 2 (lane % 4) and the next of a tile
//   producer  a warp more copies outputs, three inputs

#include "_words_f32.cuh"

#include "_alignment.cuh"

#include "_epilogue.cuh"

#include "_split_tf32.cuh"

#include "_ptx.cuh"

#include "_ptx_barrier.cuh"

#include "_pipeline.cuh"

#include "_ptx_async.cuh"

#include "_ptx_wgmma_rs.cuh"

#include "_accumulators.cuh"

// Problem
constexpr int C = 3, H = 9, W = 11;
constexpr int K = 5, R = 3, S = 3;
constexpr int P = 7, Q = 9;
using EPILOGUE = Epilogue<false, false, identity>;

// Parameters
constexpr int MMA_Q = 2;  // output columns that share an MMA
constexpr int THREAD_P = 5, THREAD_Q = 1;  // of a lane; times MMA_Q
constexpr int CHANNEL_GROUPS = 1;  // of channels, loaded together
constexpr int COMMIT_ROWS = 2;  // rows of inputs
constexpr int CONSUMER_WARPGROUPS = 2;
constexpr int COOPERATING_WARPGROUPS = 1;  // consumer warpgroups that compute a work tile together
constexpr int ROW_TILES = 1;
constexpr int STAGES = 4;  // pipeline stages: inputs in shared memory
constexpr int EPILOGUE_STAGES = 3;  // epilogue stages
constexpr int MIN_BLOCKS = 1;  // blocks resident on a multiprocessor
constexpr int PREFETCH = 1;  // commit groups whose rows are loaded ahead
constexpr bool SPLIT = false;  // elements, in a big and a small part

// Derived
constexpr int THREADS = 128 * (CONSUMER_WARPGROUPS + 1);
constexpr int TILE_P = 7, WINDOW_H = TILE_P + R - 1;
constexpr int STRIPS_Q = 5, ROW_GROUPS = 2;  // of a row; of rows
constexpr int STRIPS = 16, EIGHTS = 1;  // of a row tile; eights of a row
constexpr int ITERATIONS = 1;
constexpr int CONSUMER_GROUPS = 2;  // of COOPERATING_WARPGROUPS consumer warpgroups
constexpr int SKIPPED = (THREAD_P - TILE_P % THREAD_P) % THREAD_P;  // rows of the last strips that those before have, too
constexpr int CHANNEL_ITERATIONS = 1;  // over groups of CHANNEL_GROUPS
constexpr int WORD_TAPS = 1;  // elements of a word
constexpr int WORDS = 4;  // of a filter row
constexpr int COLUMN_WORDS = 2;  // from column to column of a lane
constexpr int WINDOW = 4;  // words of a lane's row
constexpr int HALVES = 4, FULL = HALVES / 2;  // of a filter row: half steps, steps
constexpr int APART = 1;  // half steps of a step
constexpr int STEPS = 6;
constexpr int TILES = 3;  // of 8 accumulators
constexpr int PARTS = 1;  // of a filter: rounded to the nearest TF32
constexpr int STEP_FILTERS = TILES * PARTS * 64;  // words
constexpr int FILTER_WORDS = 1152;
constexpr int PLANE = 112, SKEW = 1, STAGE = 452;  // words
constexpr bool ZEROED = true;    // what lies behind planes
constexpr bool SHIFTED = false;  // every other row begins in the middle of a word
constexpr int LOADED = 1;     // words at once
constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 224;
constexpr int K_STEP = 1;
constexpr bool WHOLE = false;  // outputs of a work tile are contiguous
constexpr int RUN = TILE_P * Q;  // outputs of an output channel
constexpr int VECTOR = 4;  // elements of 16 bytes
constexpr int PLANE_Y = 68;  // elements from channel to channel of staged outputs
constexpr int EPILOGUE_STAGE = 340;  // elements

// The output channel of an accumulator of a tile. Lanes' output channels are K_STEP apart.
__device__ __forceinline__ constexpr int k_of(int tile, int accumulator) {
    const int k = MMA_Q == 2 ? accumulator / 2 : accumulator % 2 * 4 + accumulator / 2;
    return tile / K_STEP * (8 / MMA_Q * K_STEP) + k * K_STEP + tile % K_STEP;
}

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= FILTER_WORDS) return;
    const int tile = i / (64 * PARTS) % TILES, step = i / STEP_FILTERS % STEPS, channel_iteration = i / (STEP_FILTERS * STEPS);
    const int column = i / 4 % MMA_Q, k = k_of(tile, i / 4 % 8);
    // The last steps are of two filter rows, where a row's half steps are odd in number.
    const bool last = step >= R * FULL;
    const int row = last ? (step - R * FULL) * 2 + i / 32 % 2 : step / FULL;
    const int half = last ? HALVES - 1 : step % FULL / APART * (2 * APART) + step % APART + i / 32 % 2 * APART;
    const int channel = (channel_iteration * CHANNEL_GROUPS + half / WORDS) * 4 + i % 4;
    const auto filter = [&](int tap) {
        const int s = tap - column;
        const bool there = row < R && k < K && channel < C && s >= 0 && s < S;
        return there ? w[((k * C + channel) * R + row) * S + s] : Bits{0};
    };
    if constexpr (WORD_TAPS == 1) {
        packed_w[i] = tf32_part<PARTS>(filter(half % WORDS), i / 64 % 2);
    } else {
        packed_w[i] = word_of(filter(half % WORDS * 2), filter(half % WORDS * 2 + 1));
    }
}

// First output row of a work tile, a row tile of an image.
__device__ __forceinline__ int first_row(int work_tile) { return min(work_tile % ROW_TILES * TILE_P, P - TILE_P); }

// Where a work tile's rows of a channel begin in x; where those of an output channel do in y.
__device__ __forceinline__ long long input_at(int work_tile, int channel) {
    return static_cast<long long>(work_tile / ROW_TILES) * (C * H * W) + (channel * H + first_row(work_tile)) * W;
}
__device__ __forceinline__ long long output_at(int work_tile, int k) {
    return static_cast<long long>(work_tile / ROW_TILES) * (K * P * Q) + (k * P + first_row(work_tile)) * Q;
}

// Where a channel's rows lie in a pipeline stage, words.
__device__ __forceinline__ constexpr int plane_at(int channel) { return channel * PLANE + channel % 4 / 2 * SKEW; }

#include "_planes_words.cuh"

#include "_tile_outputs.cuh"

#include "_pair_inputs.cuh"

using Accumulators = float[THREAD_P * THREAD_Q][TILES][4];

// Starts d = pixels * filters (+ d), of two half steps; their filters begin `words` behind `filters`.
template <bool ADDED = true>
__device__ __forceinline__ void multiply(float (&d)[TILES][4], const Word (&first)[2], const Word (&second)[2], const Word* filters,
                                         int words) {
    const Word pixels[4] = {first[0], first[1], second[0], second[1]};
    wgmma_tf32<ADDED, 64 * PARTS>(d, pixels, filters, words * static_cast<int>(sizeof(Word)));
}

constexpr int ROWS_IN = THREAD_P + R - 1, LAST_COMMIT = (ROWS_IN - 1) / COMMIT_ROWS * COMMIT_ROWS;  // of a lane's inputs
constexpr int LAST_LOADED = PREFETCH == 0 ? LAST_COMMIT : LAST_COMMIT > COMMIT_ROWS ? LAST_COMMIT - COMMIT_ROWS : 0;  // the batch when the last one is loaded

// Of COMMIT_ROWS rows, and of as many before them or behind.
using CommitGroups = Inputs[2 * COMMIT_ROWS];

// Loads the rows of a commit group, from `first` on.
__device__ __forceinline__ void load_rows(CommitGroups& inputs, const Word* const (&strips)[2], const bool (&odd)[2], int first) {
#pragma unroll
    for (int row = first; row < min(first + COMMIT_ROWS, ROWS_IN); ++row) inputs[row % (2 * COMMIT_ROWS)].load(strips, odd, row);
}

// Starts accumulators += (with SPLIT =) the MMAs that take the rows from `first`.
__device__ __forceinline__ void multiply_rows(Accumulators& accumulators, const CommitGroups& inputs, const Word* filters, int first) {
    // What involves a small part comes first, so that nothing large is cut off while it is added.
#pragma unroll
    for (int i = 0; i < (SPLIT ? 3 : 1); ++i) {
        const int part[2] = {SPLIT && i == 0, SPLIT && i == 1};  // of pixels, of filters
#pragma unroll
        for (int row = first; row < min(first + COMMIT_ROWS, ROWS_IN); ++row) {
            const Inputs& now = inputs[row % (2 * COMMIT_ROWS)];
#pragma unroll
            for (int step = 0; step < FULL; ++step) {
                const int half = step / APART * (2 * APART) + step % APART;
#pragma unroll
                for (int output = max(0, row - R + 1); output <= min(row, THREAD_P - 1); ++output) {
#pragma unroll
                    for (int column = 0; column < THREAD_Q; ++column) {
                        const auto& one = now.half_step(part[0], half, column);
                        const auto& two = now.half_step(part[0], half + APART, column);
                        const int words = ((row - output) * FULL + step) * STEP_FILTERS + part[1] * 64;
                        if (SPLIT && part[0] == 1 && step == 0) {
                            multiply<false>(accumulators[output * THREAD_Q + column], one, two, filters, words);
                            continue;
                        }
                        multiply(accumulators[output * THREAD_Q + column], one, two, filters, words);
                    }
                }
            }
            if constexpr (HALVES % 2 == 1) {
                // The last half steps of two filter rows, and that of an odd last row.
#pragma unroll
                for (int output = max(0, row - R + 1); output <= min(row, THREAD_P - 1); ++output) {
                    const int r = row - output;
                    if (r % 2 == 0 && r < R - 1) continue;
                    const Inputs& before = inputs[(row + 2 * COMMIT_ROWS - r % 2) % (2 * COMMIT_ROWS)];
#pragma unroll
                    for (int column = 0; column < THREAD_Q; ++column) {
                        multiply(accumulators[output * THREAD_Q + column], before.half_step(part[0], HALVES - 1, column),
                                 now.half_step(part[0], HALVES - 1, column), filters,
                                 (R * FULL + r / 2) * STEP_FILTERS + part[1] * 64);
                    }
                }
            }
        }
    }
}

struct Barriers {
    PipelineAsync<STAGES> inputs;
    PipelineAsync<EPILOGUE_STAGES> outputs;
    Barrier filters_full;
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_mma_pair(const Bits* __restrict__ x, const Word* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
    Word* const filters = reinterpret_cast<Word*>(smem + 128);
    Word* const stages = filters + FILTER_WORDS;                               // [stage][channel][row][column]
    T* const epilogue_stages = reinterpret_cast<T*>(stages + STAGES * STAGE);  // [epilogue stage][output channel][row][column]

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int consumer = warp / 4;
    const int work_tiles = n * ROW_TILES;
    if (threadIdx.x == 0) {
        barriers.inputs.init(FULL_ARRIVALS, 4 * COOPERATING_WARPGROUPS);
        barriers.outputs.init(4 * COOPERATING_WARPGROUPS, 1);
        barrier_init(&barriers.filters_full, 1);
        barrier_init_fence();
        barrier_arrive_expect(&barriers.filters_full, 4 * FILTER_WORDS);
        bulk_load(filters, packed_w, 4 * FILTER_WORDS, &barriers.filters_full);
    }
    if constexpr (ZEROED) {
        for (int i = static_cast<int>(threadIdx.x); i < STAGES * STAGE; i += THREADS) stages[i] = Word{0};
        fence_bulk();
    }
    __syncthreads();

    if (consumer == CONSUMER_WARPGROUPS) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (warp == 4 * CONSUMER_WARPGROUPS) store_outputs(epilogue_stages, barriers.outputs, y, work_tiles);
        const bool copies = PRODUCER_WARPS == 1 ? warp == 4 * CONSUMER_WARPGROUPS + 1 : warp > 4 * CONSUMER_WARPGROUPS;
        if (copies) copy_inputs(stages, barriers.inputs, x, work_tiles, warp - 4 * CONSUMER_WARPGROUPS - 1, n);
        return;
    }
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    barrier_wait(&barriers.filters_full, 0);

    const int step = CONSUMER_GROUPS * static_cast<int>(gridDim.x), first_iteration = consumer % COOPERATING_WARPGROUPS;
    int tile_index = consumer / COOPERATING_WARPGROUPS;  // of the block's work tiles
    for (int work_tile = static_cast<int>(blockIdx.x) + tile_index * static_cast<int>(gridDim.x); work_tile < work_tiles; work_tile += step, tile_index += CONSUMER_GROUPS) {
        const auto state = PipelineState<STAGES>::of(tile_index);
        const auto epilogue = PipelineState<EPILOGUE_STAGES>::of(tile_index);
        T* const output = epilogue_stages + epilogue.index * EPILOGUE_STAGE;
        barriers.inputs.consumer_wait(state);
#pragma unroll 1
        for (int iteration = first_iteration; iteration < ITERATIONS; iteration += COOPERATING_WARPGROUPS) {
            const Word* inputs_at[2];
            bool odd[2] = {};
            int row_at[2], column_at[2], skipped[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int strip = iteration * 64 + warp % 4 * 16 + i * 8 + lane / 4, there = min(strip, STRIPS - 1);
                const Place place(there);
                const int strip_row = place.row * THREAD_P, strip_column = min(place.column, STRIPS_Q - 1) * (THREAD_Q * MMA_Q);
                row_at[i] = min(strip_row, TILE_P - THREAD_P);
                column_at[i] = strip < STRIPS && place.column < STRIPS_Q ? strip_column : Q;
                skipped[i] = strip_row - row_at[i];
                int begin = row_at[i] * W + strip_column;  // elements
                if constexpr (SHIFTED) {
                    begin += static_cast<int>(input_at(work_tile, lane % 4) % 2);
                    odd[i] = begin % 2 == 1;
                }
                inputs_at[i] = stages + state.index * STAGE + plane_at(lane % 4) + begin / WORD_TAPS;
            }
            Accumulators accumulators;
            clear(accumulators);
            const Word* iteration_filters = filters;
#pragma unroll 1
            for (int channel_iteration = 0; channel_iteration < CHANNEL_ITERATIONS; ++channel_iteration) {
                const Word* strips[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) strips[i] = inputs_at[i] + channel_iteration * (CHANNEL_GROUPS * 4 * PLANE);
                const auto release_inputs = [&] {
                    if (iteration + COOPERATING_WARPGROUPS < ITERATIONS || channel_iteration + 1 < CHANNEL_ITERATIONS) return;
                    fence_bulk();  // the next copy into the pipeline stage comes after these loads
                    __syncwarp();
                    if (lane == 0) barriers.inputs.consumer_release(state.index);
                };
                CommitGroups inputs;
                if constexpr (PREFETCH > 0) load_rows(inputs, strips, odd, 0);
#pragma unroll
                for (int row = 0; row < ROWS_IN; row += COMMIT_ROWS) {
                    if constexpr (PREFETCH == 0) {
                        load_rows(inputs, strips, odd, row);
                        if (row == LAST_LOADED) release_inputs();
                    }
                    Accumulators parts;
                    Accumulators& d = SPLIT ? parts : accumulators;
                    wgmma_begin(d);
                    multiply_rows(d, inputs, iteration_filters, row);
                    wgmma_commit();
                    if constexpr (PREFETCH == 2) wgmma_wait_group<1>();
                    if constexpr (PREFETCH > 0) {
                        load_rows(inputs, strips, odd, row + COMMIT_ROWS);
                        if (row == LAST_LOADED) release_inputs();
                    }
                    if constexpr (SPLIT || PREFETCH < 2) wgmma_wait(d);
                    if constexpr (SPLIT) {
#pragma unroll
                        for (int i = max(0, row - R + 1) * THREAD_Q; i < min(row + COMMIT_ROWS, THREAD_P) * THREAD_Q; ++i) {
                            promote(accumulators[i], parts[i]);
                        }
                    }
                }
                if constexpr (PREFETCH == 2) wgmma_wait(accumulators);
                iteration_filters += STEPS * STEP_FILTERS;
            }
            if (iteration == first_iteration) barriers.outputs.producer_acquire(epilogue);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int accumulator = 0; accumulator < 2; accumulator += MMA_Q) {
                    const int k = k_of(tile, lane % 4 * 2 + accumulator);
                    if (MMA_Q * K < 8 * TILES && k >= K) continue;
                    T* const run = output + k * PLANE_Y + (WHOLE ? 0 : alignment_offset(y + output_at(work_tile, k)));
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
#pragma unroll
                        for (int row = 0; row < THREAD_P; ++row) {
                            if (row < SKIPPED && row < skipped[i]) continue;
                            T* const stored = run + (row_at[i] + row) * Q + column_at[i];
#pragma unroll
                            for (int column = 0; column < THREAD_Q; ++column) {
                                const float* const accumulators_at = accumulators[row * THREAD_Q + column][tile] + 2 * i + accumulator;
                                const int at = column * MMA_Q, left = Q - column_at[i] - at;
                                if constexpr (MMA_Q == 2 && Q % 2 == 0) {
                                    if (left <= 0) continue;
                                    const AlignedArray<T, 2> pair = {
                                        from_float<T>(finish<EPILOGUE>(accumulators_at[0], bias, k)),
                                        from_float<T>(finish<EPILOGUE>(accumulators_at[1], bias, k)),
                                    };
                                    *reinterpret_cast<AlignedArray<T, 2>*>(stored + at) = pair;
                                } else {
#pragma unroll
                                    for (int j = 0; j < MMA_Q; ++j) {
                                        if (j < left) stored[at + j] = from_float<T>(finish<EPILOGUE>(accumulators_at[j], bias, k));
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        fence_bulk();
        __syncwarp();
        if (lane == 0) barriers.outputs.producer_commit(epilogue.index);
    }
}
