// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// mma_strip precision=tf32 mma=warp consumer_groups=2 producer_warps=4 filters=shared thread_q=6 mma_p=1 warp_tiles_k=1 warps_k=1 row_tiles=1 images=1 tiles_per_warp=1 channel_slices=1 stages=2 register_prefetch=0 store=bulk min_blocks=1

// Convolution as matrix products of 16 output pixels by 8 output channels, 8 pairs deep, on tensor cores. A pair is
// a channel and a filter row.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as the lanes of a warp take them: [block of output channels][slice][step][tap][output channel tile][lane][2]
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

#include "_element.cuh"
#include "_alignment.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_mma.cuh"

#include "_split_tf32.cuh"
using T = float;  // x, w, bias and y in memory
using Bits = float;  // of an element of x or w
using Word = float;  // of an MMA
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

// Derived
constexpr int THREADS = 64;  // of a consumer group
constexpr int WARPS_P = 2;
constexpr int TILE_P = 12;
constexpr int STRIPS_Q = 2;  // of a row
constexpr int STRIP_ROWS = TILE_P / MMA_P;  // strips of a column of a row tile
constexpr int STRIPS = IMAGES * STRIP_ROWS * STRIPS_Q, STRIP_TILES = (STRIPS + 15) / 16;
constexpr int TILE_K = 8 / MMA_P, BLOCK_TILES = WARP_TILES_K * WARPS_K;
constexpr int CHANNELS = 6;  // staged at once
constexpr int WORD_CHANNELS = 1, PLANES = CHANNELS / WORD_CHANNELS;
constexpr int PAIR_ROWS = 3, PAIRS = PLANES * PAIR_ROWS;
constexpr int TAPS = 5;  // MMAs of a pair
constexpr int STEPS = 3;
constexpr bool LAST_IS_HALF = true;               // four pairs or fewer
constexpr int WINDOW_H = 25;                               // input rows of a row tile, padding too
constexpr bool ALL_INSIDE = PAD_H == 0 && ROW_TILES * TILE_P == P;  // windows have neither padding nor rows beyond the last row tile's
constexpr bool ROWS_CHECKED = MMA_P > 1 ? !ALL_INSIDE : PAD_H > 0;  // or rows beyond meet no output that is stored
constexpr int VECTOR = 4;                                   // elements of 16 bytes
constexpr int RAW_PLANE = 488;                             // elements of a plane's rows as they lie
constexpr int ROW_WORDS = 25, PITCH = 25;           // an odd pitch, so that neighbouring rows begin in different banks
constexpr int PLANE = 645;                                     // words of a plane, whose rows begin in other banks than those before
constexpr int WORDS = 3872;
constexpr int STRIP_INPUTS = 15;  // words of a strip
constexpr int CHANNELS_AT_ONCE = 7;
constexpr int STORED = 1;  // neighbours of one store
constexpr int RUN_PITCH = 140;  // elements of an output channel's staged outputs
using Filters = AlignedArray<Word, 2>;  // a lane's, for one MMA
constexpr int PARTS = 1;  // of a filter: rounded to the nearest TF32
constexpr int STEP_FILTERS = TAPS * BLOCK_TILES * PARTS * 32;
constexpr int BLOCK_FILTERS = CHANNEL_SLICES * STEPS * STEP_FILTERS;
extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    constexpr int PACKED = 1 * CHANNEL_SLICES * STEPS * STEP_FILTERS * 2;
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= PACKED) return;
    const int lane = i / 2 % 32, half = i % 2;
    const int tile = i / (64 * PARTS) % BLOCK_TILES, tap = i / (64 * PARTS * BLOCK_TILES) % TAPS;
    const int step = i / (2 * STEP_FILTERS);
    const int pair = step % STEPS * 8 + lane % 4 + half * 4;
    const int channel = step / STEPS % CHANNEL_SLICES * CHANNELS + pair / PAIR_ROWS * WORD_CHANNELS;
    const int k = (step / (STEPS * CHANNEL_SLICES) * BLOCK_TILES + tile) * TILE_K + lane / 4 % TILE_K;
    const int r = pair % PAIR_ROWS - lane / 4 / TILE_K * STRIDE_H, s = tap;
    const bool padding = pair >= PAIRS || channel >= C || k >= K || r < 0 || r >= R;
    const int at = ((k * C + channel) * R + r) * S + s;
    packed_w[i] = padding ? 0.0f : to_tf32(w[at]);
}

// The rows of a work tile's input, and where its first channel's begin in x.
struct Rows {
    int window, first, count;  // the window's first row, which may be padding; the first of x, how many
    const Bits* begin;

    __device__ __forceinline__ Rows(const Bits* x, int work_tile)
        : window(work_tile % ROW_TILES * TILE_P * STRIDE_H - PAD_H),
          first(PAD_H == 0 ? window : max(window, 0)),
          count(ALL_INSIDE ? WINDOW_H : max(min(window + WINDOW_H, H) - first, 0)),
          begin(x + static_cast<long long>(work_tile / ROW_TILES * IMAGES) * (C * H * W) + first * W) {}

    // A plane's rows.
    __device__ __forceinline__ const Bits* plane(int image, int channel) const {
        return begin + (image * C + channel) * (H * W);
    }
};

// Starts copying the input of a slice of the channels of a work tile's images: each plane's rows, and what lies beside them in their
// first and last 16 bytes. Every producer warp copies its share of one plane after the other.
__device__ __forceinline__ void copy_inputs(Bits* raw, const Bits* __restrict__ x, int thread, int work_tile, int slice, int n) {
    constexpr int COPIED = CHANNELS < C ? CHANNELS : C, PLANES_COPIED = IMAGES * COPIED;
    constexpr int SHARES = PLANES_COPIED < PRODUCER_WARPS ? PRODUCER_WARPS / PLANES_COPIED : 1, STEP = 32 * SHARES;  // of a plane; vectors
    const int warp = thread / 32;
    if (warp >= PLANES_COPIED * SHARES) return;
    const int share = thread % STEP;
    const Rows rows(x, work_tile);
    const int length = rows.count * W;
#pragma unroll 1
    for (int i = warp / SHARES; i < PLANES_COPIED; i += PRODUCER_WARPS / SHARES) {
        const int image = i / COPIED, channel = slice * CHANNELS + i % COPIED;
        if (C % CHANNELS > 0 && channel >= C || IMAGES > 1 && work_tile / ROW_TILES * IMAGES + image >= n) continue;
        const Bits* const plane = rows.plane(image, channel);
        const int before = alignment_offset(plane);
        const Bits* const from = plane - before + share * VECTOR;
        Bits* const to = raw + i * RAW_PLANE + share * VECTOR;
        const int whole = length / VECTOR / STEP;
#pragma unroll 16
        for (int j = 0; j < whole; ++j) copy_async<16>(to + j * (STEP * VECTOR), from + j * (STEP * VECTOR));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int at = (whole + j) * (STEP * VECTOR);
            if (at + share * VECTOR >= before + length) break;
            int bytes = 16;
            if constexpr (C * H * W % VECTOR > 0) {  // the last image may end within a vector
                const long long left = x + static_cast<long long>(n) * (C * H * W) - (from + at);
                if (left < VECTOR) bytes = static_cast<int>(left) * static_cast<int>(sizeof(Bits));
            }
            copy_async_first<16>(to + at, from + at, bytes);
        }
    }
}

// Puts what was copied in order: rows of words as MMAs take them, with zeros for padding. A thread has a column of every
// ROW_STEP-th row, or several columns of every row.
__device__ __forceinline__ void transform_words(Word* words, const Bits* raw, const Bits* __restrict__ x, int thread, int work_tile,
                                           int slice, int n) {
    constexpr int PRODUCER_THREADS = 32 * PRODUCER_WARPS, COLUMNS_TRANSFORMED = (ROW_WORDS + PRODUCER_THREADS - 1) / PRODUCER_THREADS;
    constexpr int ROW_STEP = COLUMNS_TRANSFORMED > 1 ? 1 : PRODUCER_THREADS / ROW_WORDS, ROWS_TRANSFORMED = (WINDOW_H + ROW_STEP - 1) / ROW_STEP;
    constexpr int ALL_PLANES = IMAGES * PLANES, COPIED = CHANNELS < C ? CHANNELS : C;
    // Words loaded together, before any is stored: of so many rows, or of so many planes.
    constexpr int MOST_LOADED = 12;
    constexpr int ROWS_LOADED = ROWS_TRANSFORMED < MOST_LOADED ? ROWS_TRANSFORMED : MOST_LOADED, MOST_PLANES = MOST_LOADED / ROWS_LOADED;
    constexpr int PLANES_LOADED = MOST_PLANES < ALL_PLANES ? MOST_PLANES : ALL_PLANES;
    const int first_row = COLUMNS_TRANSFORMED > 1 ? 0 : thread / ROW_WORDS;
    if (first_row >= ROW_STEP) return;
    const Rows rows(x, work_tile);
#pragma unroll 1
    for (int window_column = COLUMNS_TRANSFORMED > 1 ? thread : thread % ROW_WORDS; window_column < ROW_WORDS;
         window_column += PRODUCER_THREADS) {
        const int column = window_column - PAD_W;
        const bool in_row = PAD_W == 0 || static_cast<unsigned>(column) < static_cast<unsigned>(W);
#pragma unroll 1
        for (int i = 0; i < ALL_PLANES; i += PLANES_LOADED) {
#pragma unroll 1
            for (int first = 0; first < ROWS_TRANSFORMED; first += ROWS_LOADED) {
                Word loaded[PLANES_LOADED][ROWS_LOADED];
#pragma unroll
                for (int j = 0; j < PLANES_LOADED; ++j) {
                    const int image = (i + j) / PLANES, plane = (i + j) % PLANES * WORD_CHANNELS;
                    const int channel = slice * CHANNELS + plane;
                    const bool there = (ALL_PLANES % PLANES_LOADED == 0 || i + j < ALL_PLANES) &&
                                       (C % CHANNELS == 0 || channel < C) &&
                                       (IMAGES == 1 || work_tile / ROW_TILES * IMAGES + image < n);
                    const int at = (rows.window - rows.first + first_row + first * ROW_STEP) * W + column;
                    const Bits* const one =
                        raw + (image * COPIED + plane) * RAW_PLANE + alignment_offset(rows.plane(image, channel)) + at;
                    const bool has_one = there && in_row;
#pragma unroll
                    for (int l = 0; l < ROWS_LOADED; ++l) {
                        const int row = first_row + (first + l) * ROW_STEP;
                        const bool in_x = (ROWS_TRANSFORMED % ROWS_LOADED == 0 && WINDOW_H % ROW_STEP == 0 || row < WINDOW_H) &&
                                          (!ROWS_CHECKED || static_cast<unsigned>(rows.window + row) < static_cast<unsigned>(H));
                        loaded[j][l] = has_one && in_x ? one[l * (ROW_STEP * W)] : 0.0f;
                    }
                }
#pragma unroll
                for (int j = 0; j < PLANES_LOADED; ++j) {
                    if (ALL_PLANES % PLANES_LOADED > 0 && i + j >= ALL_PLANES) break;
                    Word* const to = words + (i + j) * PLANE + (first_row + first * ROW_STEP) * PITCH + window_column;
#pragma unroll
                    for (int l = 0; l < ROWS_LOADED; ++l) {
                        if ((ROWS_TRANSFORMED % ROWS_LOADED > 0 || WINDOW_H % ROW_STEP > 0) &&
                            first_row + (first + l) * ROW_STEP >= WINDOW_H) {
                            break;
                        }
                        to[l * (ROW_STEP * PITCH)] = to_tf32(loaded[j][l]);
                    }
                }
            }
        }
    }
}

// Barriers of a block's warps: a consumer group's words are there, a consumer group needs no more of its words, a consumer group, all
// producer warps.
__device__ __forceinline__ constexpr int full_barrier(int consumer) { return 1 + consumer; }
__device__ __forceinline__ constexpr int empty_barrier(int consumer) { return 1 + CONSUMER_GROUPS + consumer; }
__device__ __forceinline__ constexpr int group_barrier(int consumer) { return 1 + 2 * CONSUMER_GROUPS + consumer; }
constexpr int ALL_PRODUCERS = 1 + 3 * CONSUMER_GROUPS, BARRIER_THREADS = THREADS + 32 * PRODUCER_WARPS;  // threads of a consumer group and all producer warps

// What is supplied at once: a slice of the channels of a work tile, for a consumer group. Consumer groups alternate.
struct ProducerState {
    int work_tile, slice, consumer;

    __device__ __forceinline__ void next() {
        ++work_tile;
        if (++consumer < CONSUMER_GROUPS) return;
        consumer = 0;
        work_tile -= CONSUMER_GROUPS;
        if (++slice < CHANNEL_SLICES) return;
        slice = 0;
        work_tile += CONSUMER_GROUPS * static_cast<int>(gridDim.x);
    }
};

// What producer warps do.
__device__ __forceinline__ void produce(Word* group_words, Bits* raw, const Bits* __restrict__ x, int thread, int work_tiles, int n) {
    constexpr int RAW = 2928, STAGES = 2;
    const int first = CONSUMER_GROUPS * static_cast<int>(blockIdx.x);
    ProducerState copied = {first, 0, 0}, transformed = copied;
    const auto copy_next = [&](int stage) {
        if (copied.work_tile < work_tiles) copy_inputs(raw + stage * RAW, x, thread, copied.work_tile, copied.slice, n);
        copy_async_commit();
        copied.next();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES; ++stage) copy_next(stage);
    int stage = 0;
    for (; transformed.work_tile - transformed.consumer < work_tiles; transformed.next()) {
        copy_async_wait<STAGES - 1>();
        sync_threads<32 * PRODUCER_WARPS>(ALL_PRODUCERS);
        if (transformed.work_tile < work_tiles) {
            if (transformed.slice > 0 || transformed.work_tile >= first + CONSUMER_GROUPS) sync_threads<BARRIER_THREADS>(empty_barrier(transformed.consumer));
            Word* const words = group_words + transformed.consumer * 4852;
            transform_words(words, raw + stage * RAW, x, thread, transformed.work_tile, transformed.slice, n);
            arrive_threads<BARRIER_THREADS>(full_barrier(transformed.consumer));
        }
        sync_threads<32 * PRODUCER_WARPS>(ALL_PRODUCERS);
        copy_next(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

// A lane's pair of a step, and where its rows begin among the words.
struct Pair {
    int number, row, begin;

    __device__ __forceinline__ explicit Pair(int number)
        : number(number),
          row(number % PAIR_ROWS),
          begin(number / PAIR_ROWS * PLANE + number % PAIR_ROWS * (DILATION_H * PITCH)) {}

    // Pairs that pad the last step meet filters that are zero.
    __device__ __forceinline__ int at() const { return PAIRS % 8 == 0 || number < PAIRS ? begin : 0; }

    // To the next step, with few instructions that wait for each other.
    __device__ __forceinline__ void next() {
        number += 8;
        row += 8 % PAIR_ROWS;
        const bool wraps = row >= PAIR_ROWS;
        row -= wraps ? PAIR_ROWS : 0;
        begin += 8 / PAIR_ROWS * PLANE + 8 % PAIR_ROWS * (DILATION_H * PITCH);
        begin += wraps ? PLANE - PAIR_ROWS * (DILATION_H * PITCH) : 0;
    }
};

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
// Where the rows of a lane's pairs of a step begin, for its two strips. The pairs are the next step's afterwards.
struct StepRows {
    const Word* of[4];

    __device__ __forceinline__ StepRows(const Word* const (&strips)[2], Pair (&pairs)[2]) {
#pragma unroll
        for (int l = 0; l < 4; ++l) of[l] = strips[l % 2] + pairs[l / 2].at();
        for (Pair& pair : pairs) pair.next();
    }
};

// A lane's inputs of one step DEPTH pairs deep: of each column of the strips, its part of the MMA's pixels.
template <int DEPTH>
struct Inputs {
    Word of[STRIP_INPUTS][DEPTH / 2];
    // One part of column i of the strips.
    __device__ __forceinline__ void load(const StepRows& rows, int i, int part) {
        of[i][part] = rows.of[part][i];
    }

    __device__ __forceinline__ void load(const StepRows& rows) {
#pragma unroll
        for (int part = 0; part < DEPTH / 2; ++part) {
#pragma unroll
            for (int i = 0; i < STRIP_INPUTS; ++i) load(rows, i, part);
        }
    }
};

// accumulators += the MMAs of one step, with a lane's first fragment of `filters`; `meanwhile` is done while they run.
template <int DEPTH, typename Meanwhile>
__device__ __forceinline__ void add_step(Accumulators& accumulators, const Inputs<DEPTH>& inputs, const Filters* __restrict__ filters,
                                         const Meanwhile& meanwhile) {
    constexpr int TAP_FILTERS = BLOCK_TILES * PARTS * 32;
#pragma unroll
    for (int s = 0; s < TAPS; ++s) {
        const Tap tap(filters + s * TAP_FILTERS);
#pragma unroll
        for (int j = 0; j < THREAD_Q; ++j) multiply<DEPTH>(accumulators[j], inputs.of[j * STRIDE_W + s * DILATION_W], tap);
    }
}
// Where a strip of a work tile lies: rows neighbour each other first, so that lanes read neighbouring rows.
struct Strip {
    int image, row, column;

    __device__ __forceinline__ explicit Strip(int strip)
        : image(strip / (STRIP_ROWS * STRIPS_Q)),
          row(strip % STRIP_ROWS * MMA_P),
          column(min(strip / STRIP_ROWS % STRIPS_Q * THREAD_Q, Q - THREAD_Q)) {}

    __device__ __forceinline__ int input() const {
        return image * (PLANES * PLANE) + row * (STRIDE_H * PITCH) + column * STRIDE_W;
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMER_GROUPS * THREADS + 32 * PRODUCER_WARPS, MIN_BLOCKS)
conv2d_mma(const Bits* __restrict__ x, const Filters* __restrict__ packed_w, const T* __restrict__ bias,
           T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Word* const group_words = reinterpret_cast<Word*>(smem + 3840 + 23424);
    const int work_tiles = (n + IMAGES - 1) / IMAGES * ROW_TILES;
    packed_w += static_cast<int>(blockIdx.y) * BLOCK_FILTERS;
    Filters* const block_filters = reinterpret_cast<Filters*>(smem);
    for (int i = static_cast<int>(threadIdx.x); i < BLOCK_FILTERS; i += CONSUMER_GROUPS * THREADS + 32 * PRODUCER_WARPS) {
        block_filters[i] = packed_w[i];
    }
    __syncthreads();
    // The same for a warp's lanes, and seen to be: its loops and the operands of wgmma then need uniform registers only.
    const int block_warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    const int consumer = min(block_warp / (THREADS / 32), CONSUMER_GROUPS);
    if (consumer == CONSUMER_GROUPS) {
        Bits* const raw = reinterpret_cast<Bits*>(smem + 3840);  // [stage][image][channel]
        produce(group_words, raw, x, static_cast<int>(threadIdx.x) - CONSUMER_GROUPS * THREADS, work_tiles, n);
        return;
    }
    const int thread = static_cast<int>(threadIdx.x) - consumer * THREADS, lane = thread % 32;
    const int warp = block_warp - consumer * (THREADS / 32), group = warp / WARPS_P, warp_p = warp % WARPS_P;
    const Filters* const filters = block_filters + group * (WARP_TILES_K * PARTS * 32) + lane;
    const Word* const words = group_words + consumer * 4852;  // [image][plane][row][column]
    T* const staged_outputs = reinterpret_cast<T*>(group_words + consumer * 4852 + WORDS);  // [image][output channel][row][column]
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
                STRIP_TILES == TILES_PER_WARP * WARPS_P || strip_tile < STRIP_TILES;
            const int strip = strip_tile * 16 + lane / 4;
            const Strip strips[2] = {Strip(min(strip, STRIPS - 1)), Strip(min(strip + 8, STRIPS - 1))};
            Accumulators accumulators;
#pragma unroll
            for (int j = 0; j < THREAD_Q; ++j) {
#pragma unroll
                for (int tile = 0; tile < WARP_TILES_K; ++tile) {
#pragma unroll
                    for (int l = 0; l < 4; ++l) accumulators[j][tile][l] = 0.0f;
                }
            }
#pragma unroll 1
            for (int slice = 0; slice < CHANNEL_SLICES; ++slice) {
                if (iteration == 0) sync_threads<BARRIER_THREADS>(full_barrier(consumer));
                if (computes) {
                    const Word* const rows[2] = {words + strips[0].input(), words + strips[1].input()};
                    const Filters* step_filters = filters + slice * (STEPS * STEP_FILTERS);
                    Pair pairs[2] = {Pair(lane % 4), Pair(lane % 4 + 4)};
                    constexpr int WHOLE = STEPS - LAST_IS_HALF;  // steps
                    const auto nothing = [] {};
#pragma unroll 1
                    for (int i = 0; i < WHOLE; ++i) {
                        Inputs<8> inputs;
                        inputs.load(StepRows(rows, pairs));
                        add_step(accumulators, inputs, step_filters, nothing);
                        step_filters += STEP_FILTERS;
                    }
                    if constexpr (LAST_IS_HALF) {
                        Inputs<4> inputs;
                        inputs.load(StepRows(rows, pairs));
                        add_step(accumulators, inputs, step_filters, nothing);
                    }
                }
                if (iteration == TILES_PER_WARP - 1 && (slice + 1 < CHANNEL_SLICES || work_tile + step < work_tiles)) {
                    arrive_threads<BARRIER_THREADS>(empty_barrier(consumer));
                }
            }
            if (iteration == 0) {  // the last work tile's outputs have been read
                bulk_store_wait_read<0>();
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
        fence_bulk();
        sync_threads<THREADS>(group_barrier(consumer));
        const auto run_at = [&](int run) { return tile_outputs + (run / CHANNELS_AT_ONCE * K + run % CHANNELS_AT_ONCE) * (P * Q); };
        const auto there = [&](int run) { return K % CHANNELS_AT_ONCE == 0 || block_k + run % CHANNELS_AT_ONCE < K; };
        for (int i = thread; i < images * CHANNELS_AT_ONCE; i += THREADS) {
            if (!there(i)) continue;
            T* const run = run_at(i);
            const T* const from = staged_outputs + i * RUN_PITCH + alignment_offset(run);
            const int head = (VECTOR - alignment_offset(run)) % VECTOR, vectors = (run_length - head) / VECTOR;
            if (vectors > 0) bulk_store(run + head, from + head, 16 * vectors);
        }
        bulk_store_commit();
    }
    bulk_store_wait_read<0>();
}
