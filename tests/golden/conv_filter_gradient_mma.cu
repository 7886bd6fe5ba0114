// conv_filter_gradient n 3 c 72 h 9 w 8 k 80 r 3 s 3 pad_h 1 pad_w 1 pad_h_end 1 pad_w_end 1 f16
// conv_filter_gradient_mma warp_k=32 warp_columns=32 warps_k=1 warps_column=2 step_pixels=32 stages=3 contiguous=tap min_blocks=2

// D[k, trsc] = sum over pixels nopq of dY[nopq, k] * X[nopq, trsc] for each group: M = K / GROUPS output channels, N = TAPS * C / GROUPS columns,
// depth = N*O*P*Q pixels.
// A = dy [N, O, P, Q, K].  B = x [N, D, H, W, C], gathered by cp.async. Rows of both are the depth.
// Tile TILE_K x TILE_COLUMNS; tile space GROUPS * ceil(M / TILE_K) * ceil(N / TILE_COLUMNS).
// Parts: shares of the work, sums of parts -> _stream_k, operands -> _fragments_*.
//
//   x          [N, D, H, W, C]     input; of fewer dimensions the first have size 1
//   dy         [N, O, P, Q, K]     gradient of the output
//   dw         [K, T, R, S, C]     gradient of the filters, here of a group's input channels
//   workspace  [block][tile]       sums of parts of tiles [TILE_K][TILE_COLUMNS]
//   n          images N, any number
//
//   grid  x: an equal share of the steps of all tiles
//   warp  WARP_K output channels, WARP_COLUMNS columns

#include "_words_f16.cuh"

#include "_ptx.cuh"

#include "_ptx_ldmatrix_trans.cuh"

#include "_accumulators.cuh"

// Problem
constexpr int C = 72, D = 1, H = 9, W = 8;
constexpr int K = 80;
constexpr int P = 9, Q = 8, PIXELS = 72;  // of an image of dy
constexpr int STRIDE_D = 1, STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_D = 0, PAD_H = 1, PAD_W = 1;
constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;
// A tap is one of a filter, or a row of them, whose input channels are neighbours.
constexpr int R = 3, S = 3, TAPS = 9;
constexpr int GROUP_C = 72, GROUP_K = 80;
[[maybe_unused]] constexpr int GROUPS = 1, JOINED = 1;  // none is multiplied with another
constexpr bool CONTIGUOUS_ROWS = false, COPY_WORDS = false;

// Parameters
constexpr int WARP_K = 32, WARP_COLUMNS = 32;
constexpr int STEP_PIXELS = 32, STAGES = 3, MIN_BLOCKS = 2;

// Derived
constexpr int THREADS = 64, REDUCE_THREADS = 256, REDUCE_LANES = 1, WARPS_K = 1;
constexpr int TILE_K = 32, TILE_COLUMNS = 64;
constexpr int TILES_K = 3, TILES_COLUMNS = 11, TILES = 33;
constexpr int CHUNK = 8;  // elements of 16 bytes
constexpr int TAP_COLUMNS = 72, LEAD = 0;
constexpr bool ALL_TAPS = false;  // tiles divide the columns wherever
constexpr int PITCH_K = TILE_K + 8, PITCH_COLUMNS = TILE_COLUMNS + 8;
constexpr int STAGE = STEP_PIXELS * (PITCH_K + PITCH_COLUMNS);  // elements: dy [STEP_PIXELS][PITCH_K], then x [STEP_PIXELS][PITCH_COLUMNS]

// Steps of a tile, for n images.
__device__ __forceinline__ int steps_of_tile(int n) {
    return static_cast<int>((static_cast<long long>(n) * PIXELS + STEP_PIXELS - 1) / STEP_PIXELS);
}

#include "_stream_k.cuh"

#include "_fragments_16.cuh"

// Copies the elements of a chunk that are `there`, the first of them as many at once as VECTOR divides; zeros come for others.
template <int VECTOR, class There>
__device__ __forceinline__ void copy_chunk(Bits* to, const Bits* from, const There& there) {
    constexpr int COPIED = VECTOR % CHUNK == 0 ? CHUNK : VECTOR % 4 == 0 ? 4 : VECTOR % 2 == 0 ? 2 : 1;
    if constexpr (COPIED * sizeof(Bits) >= 4) {
#pragma unroll
        for (int i = 0; i < CHUNK; i += COPIED) copy_async<COPIED * sizeof(Bits)>(to + i, from + i, there(i));
    } else {
        Bits elements[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) elements[i] = there(i) ? from[i] : Bits{0};
        *reinterpret_cast<Chunk*>(to) = chunk_of(elements);
    }
}

// Starts the copies of a step's rows of x. Neighbouring lanes have the words of a chunk, then pixels: a pixel's row overlaps the next one's, so that
// a warp reads few cache lines, and its words lie in different banks.
__device__ __forceinline__ void copy_words(Bits* to, const Bits* __restrict__ x, const Tile& tile, int first, int pixels) {
    constexpr int WORD = 4 / static_cast<int>(sizeof(Bits)), WORDS = CHUNK / WORD, SLOTS = STEP_PIXELS * WORDS;
    constexpr int ROUNDS = THREADS > SLOTS ? THREADS / SLOTS : 1;  // threads that share the chunks of a pixel
    const int round = static_cast<int>(threadIdx.x) / SLOTS;
    if (ROUNDS > 1 && round >= ROUNDS) return;
    for (int slot = static_cast<int>(threadIdx.x) - (ROUNDS > 1 ? round * SLOTS : 0); slot < SLOTS; slot += THREADS) {
        const int word = slot % WORDS * WORD, row = slot / WORDS, pixel = first + row;
        const int d = pixel % PIXELS / (P * Q) * STRIDE_D - PAD_D, h = pixel % (P * Q) / Q * STRIDE_H - PAD_H;
        const int at = (pixel % Q * STRIDE_W - PAD_W) * C - LEAD + word;  // in its row
        const Bits* const from = x + ((static_cast<long long>(pixel / PIXELS) * D + d) * H + h) * (W * C) + at;
#pragma unroll
        for (int i = 0; i < (TILE_COLUMNS / CHUNK + ROUNDS - 1) / ROUNDS; ++i) {
            const int chunk = ROUNDS > 1 ? i * ROUNDS + round : i, column = tile.first_column + chunk * CHUNK;
            if (chunk >= TILE_COLUMNS / CHUNK) break;
            const int tap = column / TAP_COLUMNS, c = column % TAP_COLUMNS, below = tap % R * DILATION_H, behind = tap / R * DILATION_D;
            const bool there = pixel < pixels && tap < TAPS && static_cast<unsigned>(d + behind) < static_cast<unsigned>(D) &&
                               static_cast<unsigned>(h + below) < static_cast<unsigned>(H) && static_cast<unsigned>(at + c) < static_cast<unsigned>(W * C);
            copy_async<4>(to + row * PITCH_COLUMNS + chunk * CHUNK + word, from + (behind * H + below) * (W * C) + c, there);
        }
    }
}

// Starts the copies of a step's pixels; behind the last one it has zeros.
__device__ __forceinline__ void copy_step(Bits* stage, const Bits* __restrict__ x, const Bits* __restrict__ dy, const Tile& tile, int first, int pixels) {
    constexpr int CHUNKS_K = TILE_K / CHUNK, CHUNKS_COLUMNS = TILE_COLUMNS / CHUNK;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < STEP_PIXELS * CHUNKS_K; i += THREADS) {
        const int row = i / CHUNKS_K, k = tile.first_k + i % CHUNKS_K * CHUNK, pixel = first + row;
        const Bits* const from = dy + static_cast<long long>(pixel) * K + tile.group * GROUP_K + k;
        copy_chunk<GROUP_K>(stage + row * PITCH_K + i % CHUNKS_K * CHUNK, from, [&](int j) { return pixel < pixels && k + j < GROUP_K; });
    }
    if constexpr (COPY_WORDS) {
        copy_words(stage + STEP_PIXELS * PITCH_K, x, tile, first, pixels);
        return;
    }
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < STEP_PIXELS * CHUNKS_COLUMNS; i += THREADS) {
        const int row = i / CHUNKS_COLUMNS, column = tile.first_column + i % CHUNKS_COLUMNS * CHUNK, pixel = first + row;
        const int tap = column / TAP_COLUMNS, c = column % TAP_COLUMNS;
        const int d = pixel % PIXELS / (P * Q) * STRIDE_D - PAD_D + tap / (R * S) * DILATION_D;
        const int h = pixel % (P * Q) / Q * STRIDE_H - PAD_H + tap / S % R * DILATION_H;
        const int w = pixel % Q * STRIDE_W - PAD_W + tap % S * DILATION_W;
        const bool row_inside = pixel < pixels && tap < TAPS && static_cast<unsigned>(d) < static_cast<unsigned>(D) &&
                                static_cast<unsigned>(h) < static_cast<unsigned>(H);
        const auto inside = [&](int j) {
            if constexpr (CONTIGUOUS_ROWS) return row_inside && c + j < GROUP_C && static_cast<unsigned>(w * C + c + j) < static_cast<unsigned>(W * C);
            return row_inside && c + j < GROUP_C && static_cast<unsigned>(w) < static_cast<unsigned>(W);
        };
        const Bits* const from = x + (((static_cast<long long>(pixel / PIXELS) * D + d) * H + h) * W + w) * C + tile.group * GROUP_C + c;
        copy_chunk<CONTIGUOUS_ROWS ? C : GROUP_C>(stage + STEP_PIXELS * PITCH_K + row * PITCH_COLUMNS + i % CHUNKS_COLUMNS * CHUNK, from, inside);
    }
}

using Accumulators = float[WARP_K / 16][WARP_COLUMNS / 8][4];

// accumulators += a stage, of a warp's output channels and columns.
__device__ __forceinline__ void add_stage(Accumulators& accumulators, const Bits* stage, int warp_k, int warp_column) {
#pragma unroll
    for (int pixel = 0; pixel < STEP_PIXELS; pixel += MMA_PIXELS) {
        Word b[WARP_COLUMNS / 16][2][2];
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 16; ++j) {
            load_b<PITCH_COLUMNS>(b[j], stage + STEP_PIXELS * PITCH_K + pixel * PITCH_COLUMNS + warp_column + j * 16);
        }
#pragma unroll
        for (int i = 0; i < WARP_K / 16; ++i) {
            Word a[4];
            load_a<PITCH_K>(a, stage + pixel * PITCH_K + warp_k + i * 16);
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 8; ++j) mma_m16n8(accumulators[i][j], a, b[j / 2][j % 2]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv_filter_gradient_mma(const Bits* __restrict__ x, const Bits* __restrict__ dy, float* __restrict__ workspace, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Bits* const stages = reinterpret_cast<Bits*>(smem);
    const int warp = static_cast<int>(threadIdx.x) / 32, warp_k = warp % WARPS_K * WARP_K, warp_column = warp / WARPS_K * WARP_COLUMNS;
    const int pixels = n * PIXELS;
    launch_next_stage();
#pragma unroll 1
    for (Share share(n, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)); share.more();) {
        const Part part = share.take();
        const Tile tile(part.tile);
        int copied = part.begin;
        const auto copy_next = [&](int stage) {
            if (copied < part.end) copy_step(stages + stage * STAGE, x, dy, tile, copied * STEP_PIXELS, pixels);
            ++copied;
            copy_async_commit();
        };
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage) copy_next(stage);
        Accumulators accumulators;
        clear(accumulators);
        int stage = 0;
#pragma unroll 1
        for (int step = part.begin; step < part.end; ++step) {
            copy_async_wait<STAGES - 2>();
            __syncthreads();
            copy_next(stage == 0 ? STAGES - 1 : stage - 1);
            add_stage(accumulators, stages + stage * STAGE, warp_k, warp_column);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        store_part<16>(accumulators, sums_of(workspace, part.tile, blockIdx.x, gridDim.x, share.steps), tile, warp_k, warp_column);
        __syncthreads();  // the stages have been read
    }
}
