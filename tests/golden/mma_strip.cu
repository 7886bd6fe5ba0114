// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// mma_strip precision=tf32 mma=warp consumer_groups=2 producer_warps=4 filters=shared thread_q=6 mma_p=1 warp_tiles_k=1 warps_k=1 row_tiles=1 images=1 tiles_per_warp=1 channel_slices=1 stages=2 register_prefetch=0 store=bulk min_blocks=1

// D[npq, k] = sum over c, r, s of X[npq, crs] * W[crs, k]: M = strips of output columns, N = K output channels of MMA_P rows, depth = C*R*S.
// A = x [N, C, H, W], a strip's columns in registers.  B = packed_w.  Tile IMAGES images or a row tile; tile space ceil(N / IMAGES) * ROW_TILES.
//
// Convolution as matrix products of 16 output pixels by 8 output channels, 8 pairs deep, on tensor cores. A pair is
// a channel, or two that are the halves of a word, and a filter row; or the halves are for two neighbouring columns of the filter.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as the lanes of a warp take them: [block of output channels][slice][step][tap][output channel tile][part][lane][2]
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// A lane keeps strips of input: THREAD_Q + S - 1 neighbours of a row (at stride 1), for two pairs and two strips of output
// columns. Output column j under filter column s then needs register j + s: the registers are the fragments of all taps.
// The columns of an MMA are the output channels of MMA_P neighbouring output rows, its pairs the input rows that any of these needs:
// filters are zero where an output row does not. An infinity or a NaN there makes a NaN of it.
// A group of consumer warps takes IMAGES images, or a row tile of rows of one, at a time, and goes on to the next such work tile
// CONSUMER_GROUPS * gridDim.x work tiles away. For the consumer groups of a block other warps, the producer warps, supply the input: they
// copy rows as they lie, well ahead, and put them in order as words when the consumer group is done with its last ones.
// CHANNELS channels are supplied at once.
// Outputs are staged too, and leave as runs of rows, one for each output channel.
//
//   grid  x: work tiles that run at once;  y: block of output channels
//   warp  tile of 16 strips, then group of WARP_TILES_K tiles of 8 output channels
//   lane  strips lane / 4 and lane / 4 + 8;  pairs lane % 4 and lane % 4 + 4;  of each tile columns 2 (lane % 4) and the next:
//         TILE_K output channels of the first row, then those of the next

#include "_words_f32.cuh"

#include "_alignment.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_split_tf32.cuh"

#include "_accumulators.cuh"

#include "_registers_fixed.cuh"

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int MMA_P = 1, THREAD_Q = 6;  // of a strip
constexpr int WARP_TILES_K = 1, WARPS_K = 1;
constexpr int ROW_TILES = 1, IMAGES = 1;
constexpr int TILES_PER_WARP = 1;  // tiles of 16 strips that a warp computes one after the other
constexpr int CHANNEL_SLICES = 1;
constexpr int CONSUMER_GROUPS = 2, PRODUCER_WARPS = 4;  // warps
constexpr int MIN_BLOCKS = 1;  // blocks resident on a multiprocessor
constexpr bool WARPGROUP = false;  // whose MMAs, else a warp's
[[maybe_unused]] constexpr bool SPLIT = false;  // elements, in a big and a small part
constexpr bool SHARED_FILTERS = true;
[[maybe_unused]] constexpr int PREFETCH = 0;  // whether a step's inputs are loaded while MMAs run: no, the step before's, or its own
constexpr bool BULK_STORE = true;  // of runs, else of vectors
constexpr bool ALIGNED_RUNS = true;  // begin and end on 16 bytes

// Derived
constexpr int THREADS = 64;  // of a consumer group
constexpr int WARPS_P = 2;
constexpr int TILE_P = 12;
constexpr int STRIPS_Q = 2;  // of a row
constexpr int STRIP_ROWS = TILE_P / MMA_P;  // strips of a column of a row tile
constexpr int STRIPS = IMAGES * STRIP_ROWS * STRIPS_Q, STRIP_TILES = (STRIPS + 15) / 16;
constexpr int TILE_K = 8 / MMA_P, BLOCK_TILES = WARP_TILES_K * WARPS_K;
constexpr int CHANNELS = 6;  // staged at once
constexpr int WORD_CHANNELS = 1, WORD_COLUMNS = 1;  // of a word
constexpr int PLANES = CHANNELS / WORD_CHANNELS;
constexpr int PAIR_ROWS = 3, PAIRS = PLANES * PAIR_ROWS;
constexpr int TAPS = 5;  // MMAs of a pair
constexpr int STEPS = 3;
[[maybe_unused]] constexpr bool LAST_IS_HALF = true;               // four pairs or fewer
constexpr int WINDOW_H = 25;                               // input rows of a row tile, padding too
constexpr bool ALL_INSIDE = PAD_H == 0 && ROW_TILES * TILE_P == P;  // windows have neither padding nor rows beyond the last row tile's
constexpr bool ROWS_CHECKED = MMA_P > 1 ? !ALL_INSIDE : PAD_H > 0;  // or rows beyond meet no output that is stored
constexpr int VECTOR = 4;                                   // elements of 16 bytes
constexpr int RAW_PLANE = 488;                             // elements of a plane's rows as they lie
constexpr int ROW_WORDS = 25, PITCH = 25;           // an odd pitch, so that neighbouring rows begin in different banks
constexpr int PLANE = 645;                                     // words of a plane, whose rows begin in other banks than those before
constexpr int RAW = 2928, STAGES = 2;                     // elements of a stage of input as it lies
constexpr int WORDS = 3872, GROUP_WORDS = 4852;  // words of a consumer group, with its outputs
constexpr int STRIP_INPUTS = 15;  // words of a strip
constexpr int CHANNELS_AT_ONCE = 7;
constexpr int STORED = 1;  // neighbours of one store
constexpr int RUN_PITCH = 140;  // elements of an output channel's staged outputs
constexpr bool REALLOCATED = false;
constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 255;
using Vector = AlignedArray<T, VECTOR>;

using Filters = AlignedArray<Word, 2>;  // a lane's, for one MMA
constexpr int PARTS = 1;  // of a filter: rounded to the nearest TF32
constexpr int STEP_FILTERS = TAPS * BLOCK_TILES * PARTS * 32;
constexpr int BLOCK_FILTERS = CHANNEL_SLICES * STEPS * STEP_FILTERS;
[[maybe_unused]] constexpr int PROMOTED = 9;  // taps of 8 pairs of split elements that a tensor core sums up, cutting off what does not fit

// The first filter column of a tap. An odd last one shares its tap with the one before, whose second filter is zero.
__device__ __forceinline__ constexpr int tap_column(int tap) {
    return WORD_COLUMNS == 1 || 2 * tap < S - 1 ? WORD_COLUMNS * tap : S - 2;
}

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    constexpr int PACKED = 1 * CHANNEL_SLICES * STEPS * STEP_FILTERS * 2;
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= PACKED) return;
    const int lane = WARPGROUP ? i % 32 : i / 2 % 32, half = WARPGROUP ? i / 32 % 2 : i % 2;
    const int tile = i / (64 * PARTS) % BLOCK_TILES, tap = i / (64 * PARTS * BLOCK_TILES) % TAPS;
    const int step = i / (2 * STEP_FILTERS);
    const int pair = step % STEPS * 8 + lane % 4 + half * 4;
    const int channel = step / STEPS % CHANNEL_SLICES * CHANNELS + pair / PAIR_ROWS * WORD_CHANNELS;
    const int k = (step / (STEPS * CHANNEL_SLICES) * BLOCK_TILES + tile) * TILE_K + lane / 4 % TILE_K;
    const int r = pair % PAIR_ROWS - lane / 4 / TILE_K * STRIDE_H, s = tap_column(tap);
    const bool padding = pair >= PAIRS || channel >= C || k >= K || r < 0 || r >= R;
    const int at = ((k * C + channel) * R + r) * S + s;
    if constexpr (sizeof(Bits) == 4) {
        packed_w[i] = tf32_part<PARTS>(padding ? Bits{0} : w[at], i / 64 % 2);
    } else if constexpr (WORD_COLUMNS == 2) {
        const unsigned low = padding || s < 2 * tap ? 0 : w[at], high = padding ? 0 : w[at + 1];
        packed_w[i] = low | high << 16;
    } else {
        const unsigned low = padding ? 0 : w[at], high = padding || channel + 1 == C ? 0 : w[at + R * S];
        packed_w[i] = low | high << 16;
    }
}

#include "_plane_producer.cuh"

#include "_strip_inputs.cuh"

using Accumulators = float[THREAD_Q][WARP_TILES_K][4];

// A lane's filters of one tap.
struct Tap {
    Filters of[WARP_TILES_K];

    __device__ __forceinline__ explicit Tap(const Filters* __restrict__ filters) {
#pragma unroll
        for (int tile = 0; tile < WARP_TILES_K; ++tile) of[tile] = filters[tile * (PARTS * 32)];
    }
};

// d = pixels * filters (+ d), DEPTH pairs deep, 8 or 4.
template <int DEPTH, bool ADDED = true>
__device__ __forceinline__ void multiply(float (&d)[WARP_TILES_K][4], const Word (&pixels)[DEPTH / 2], const Tap& filters) {
#pragma unroll
    for (int tile = 0; tile < WARP_TILES_K; ++tile) {
        if constexpr (!ADDED) {
#pragma unroll
            for (int l = 0; l < 4; ++l) d[tile][l] = 0.0f;
        }
        if constexpr (DEPTH == 8) {
            mma_m16n8k8_tf32(d[tile], pixels, filters.of[tile].at, d[tile]);
        } else {
            mma_m16n8k4_tf32(d[tile], pixels, filters.of[tile].at[0], d[tile]);
        }
    }
}

__device__ __forceinline__ void begin(Accumulators&) {}

// MMAs are done as they are started.
template <typename Meanwhile>
__device__ __forceinline__ void finish_mmas(Accumulators&, const Meanwhile&) {}
#include "_strip_steps_apart.cuh"

extern "C" __global__ void __launch_bounds__(CONSUMER_GROUPS * THREADS + 32 * PRODUCER_WARPS, MIN_BLOCKS)
conv2d_mma(const Bits* __restrict__ x, const Filters* __restrict__ packed_w, const T* __restrict__ bias,
           T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Word* const group_words = reinterpret_cast<Word*>(smem + 3840 + 23424);
    const int work_tiles = (n + IMAGES - 1) / IMAGES * ROW_TILES;
    packed_w += static_cast<int>(blockIdx.y) * BLOCK_FILTERS;
    Filters* const block_filters = reinterpret_cast<Filters*>(smem);
    if constexpr (SHARED_FILTERS) {
        for (int i = static_cast<int>(threadIdx.x); i < BLOCK_FILTERS; i += CONSUMER_GROUPS * THREADS + 32 * PRODUCER_WARPS) {
            block_filters[i] = packed_w[i];
        }
        if constexpr (WARPGROUP) fence_bulk();
        __syncthreads();
    }
    // The same for a warp's lanes, and seen to be: its loops and the operands of wgmma then need uniform registers only.
    const int block_warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    const int consumer = min(block_warp / (THREADS / 32), CONSUMER_GROUPS);
    if (consumer == CONSUMER_GROUPS) {
        Bits* const raw = reinterpret_cast<Bits*>(smem + 3840);  // [stage][image][channel]
        if constexpr (REALLOCATED) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(group_words, raw, x, static_cast<int>(threadIdx.x) - CONSUMER_GROUPS * THREADS, work_tiles, n);
        return;
    }
    if constexpr (REALLOCATED) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    const int thread = static_cast<int>(threadIdx.x) - consumer * THREADS, lane = thread % 32;
    const int warp = block_warp - consumer * (THREADS / 32), group = warp / WARPS_P, warp_p = warp % WARPS_P;
    const Filters* const filters = (SHARED_FILTERS ? block_filters : packed_w) + group * (WARP_TILES_K * PARTS * 32) + (WARPGROUP ? 0 : lane);
    const Word* const words = group_words + consumer * GROUP_WORDS;  // [image][plane][row][column]
    T* const staged_outputs = reinterpret_cast<T*>(group_words + consumer * GROUP_WORDS + WORDS);  // [image][output channel][row][column]
    const int block_k = static_cast<int>(blockIdx.y) * (TILE_K * BLOCK_TILES);

    const int step = CONSUMER_GROUPS * static_cast<int>(gridDim.x);

    for (int work_tile = CONSUMER_GROUPS * static_cast<int>(blockIdx.x) + consumer; work_tile < work_tiles; work_tile += step) {
        const int first = work_tile / ROW_TILES * IMAGES;  // image
        const int images = IMAGES == 1 ? 1 : min(IMAGES, n - first);
        const int first_row = work_tile % ROW_TILES * TILE_P, run_length = min(TILE_P, P - first_row) * Q;
        T* const tile_outputs = y + (static_cast<long long>(first) * K + block_k) * (P * Q) + first_row * Q;
#pragma unroll 1
        for (int iteration = 0; iteration < TILES_PER_WARP; ++iteration) {
            const int strip_tile = iteration * WARPS_P + warp_p;
            const bool computes =
                STRIP_TILES == TILES_PER_WARP * WARPS_P || (WARPGROUP ? strip_tile / 4 * 4 : strip_tile) < STRIP_TILES;
            const int strip = strip_tile * 16 + lane / 4;
            const Strip strips[2] = {Strip(min(strip, STRIPS - 1)), Strip(min(strip + 8, STRIPS - 1))};
            Accumulators accumulators;
            clear(accumulators);
#pragma unroll 1
            for (int slice = 0; slice < CHANNEL_SLICES; ++slice) {
                if (iteration == 0) sync_threads<BARRIER_THREADS>(full_barrier(consumer));
                if (computes) {
                    const Word* const rows[2] = {words + strips[0].input(), words + strips[1].input()};
                    add_slice(accumulators, rows, filters + slice * (STEPS * STEP_FILTERS), lane);
                }
                if (iteration == TILES_PER_WARP - 1 && (slice + 1 < CHANNEL_SLICES || work_tile + step < work_tiles)) {
                    arrive_threads<BARRIER_THREADS>(empty_barrier(consumer));
                }
            }
            if (iteration == 0) {  // the last work tile's outputs have been read
                if constexpr (BULK_STORE) bulk_store_wait_read<0>();
                sync_threads<THREADS>(group_barrier(consumer));
            }
            if (computes) {
#pragma unroll
                for (int tile = 0; tile < WARP_TILES_K; ++tile) {
#pragma unroll
                    for (int l = 0; l < 4; ++l) {
                        const Strip& at = strips[l / 2];
                        const int column = lane % 4 * 2 + l % 2;
                        const int k = (group * WARP_TILES_K + tile) * TILE_K + column % TILE_K;
                        if (K % (TILE_K * BLOCK_TILES) > 0 && block_k + k >= K) continue;
                        T* const run = tile_outputs + (at.image * K + k) * (P * Q);
                        T* const output = staged_outputs + (at.image * CHANNELS_AT_ONCE + k) * RUN_PITCH + alignment_offset(run) +
                                          (at.row + column / TILE_K) * Q + at.column;
#pragma unroll
                        for (int j = 0; j < THREAD_Q; j += STORED) {
                            AlignedArray<T, STORED> outputs;
#pragma unroll
                            for (int i = 0; i < STORED; ++i) {
                                const float accumulator = finish<EPILOGUE>(accumulators[j + i][tile][l], bias, block_k + k);
                                outputs.at[i] = from_float<T>(accumulator);
                            }
                            *reinterpret_cast<AlignedArray<T, STORED>*>(output + j) = outputs;
                        }
                    }
                }
            }
        }
        // A run of rows for each output channel: what is left of its first 16 bytes, whole ones, what is left of its last.
        if constexpr (BULK_STORE) fence_bulk();
        sync_threads<THREADS>(group_barrier(consumer));
        const auto run_at = [&](int run) { return tile_outputs + (run / CHANNELS_AT_ONCE * K + run % CHANNELS_AT_ONCE) * (P * Q); };
        const auto there = [&](int run) { return K % CHANNELS_AT_ONCE == 0 || block_k + run % CHANNELS_AT_ONCE < K; };
        if constexpr (BULK_STORE) {
            for (int i = thread; i < images * CHANNELS_AT_ONCE; i += THREADS) {
                if (!there(i)) continue;
                T* const run = run_at(i);
                const T* const from = staged_outputs + i * RUN_PITCH + alignment_offset(run);
                const int head = (VECTOR - alignment_offset(run)) % VECTOR, vectors = (run_length - head) / VECTOR;
                if (vectors > 0) bulk_store(run + head, from + head, 16 * vectors);
            }
            bulk_store_commit();
        } else {
            for (int i = thread / 32; i < images * CHANNELS_AT_ONCE; i += THREADS / 32) {
                if (!there(i)) continue;
                T* const run = run_at(i);
                const T* const from = staged_outputs + i * RUN_PITCH + alignment_offset(run);
                const int head = (VECTOR - alignment_offset(run)) % VECTOR, vectors = (run_length - head) / VECTOR;
                for (int j = lane; j < vectors; j += 32) {
                    reinterpret_cast<Vector*>(run + head)[j] = reinterpret_cast<const Vector*>(from + head)[j];
                }
            }
        }
        // What whole vectors leave of a run at its beginning and its end.
        if constexpr (!ALIGNED_RUNS) {
            constexpr int EDGES = 2 * (VECTOR - 1);
            for (int i = thread; i < images * CHANNELS_AT_ONCE * EDGES; i += THREADS) {
                if (!there(i / EDGES)) continue;
                T* const run = run_at(i / EDGES);
                const T* const from = staged_outputs + i / EDGES * RUN_PITCH + alignment_offset(run);
                const int head = min((VECTOR - alignment_offset(run)) % VECTOR, run_length), small = (run_length - head) % VECTOR;
                const int edge = i % EDGES, at = edge < VECTOR - 1 ? edge : run_length - 1 - (edge - (VECTOR - 1));
                if (edge < VECTOR - 1 ? edge < head : edge - (VECTOR - 1) < small) run[at] = from[at];
            }
        }
    }
    if constexpr (BULK_STORE) bulk_store_wait_read<0>();
}
