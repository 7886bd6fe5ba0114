// conv_transpose n 2 c 16 d 4 h 6 w 5 k 24 t 3 r 3 s 5 padding_h 1 padding_w 2 f16 nhwc bias
// conv_transpose_mma_gemm mma=warp warp_p=4 warp_tiles_k=3 warps_k=1 row_tiles=1 column_tiles=1 images=1 frames=1 contiguous_taps=pixel channel_slices=1 stages=2 register_prefetch=0 filters=resident min_blocks=2 arithmetic=mma

// D[nopq, k] = sum over t, r, s, c of X[nopq, trsc] * W[trsc, k]: M = N*O*P*Q pixels, N = K output channels, depth = T*R*S*C.
// A = x [N, D, H, W, C], a window in shared memory that serves all taps of a frame of the filters.  B = packed_w.
// Tile IMAGES x TILE_P x TILE_Q pixels by 8 * BLOCK_TILES output channels; tile space ceil(N*O / IMAGES) * ROW_TILES * COLUMN_TILES * ceil(K / that).
//
// Implicit matrix product: y [pixels x output channels] = im2col(x) [pixels x taps] * w [taps x output channels], on tensor cores.
// CHUNK_TAPS taps that neighbour each other in x are a chunk of 16 bytes: a row of an operand. So the window of x that a tile of
// pixels needs is staged in shared memory once, and im2col(x) is nothing but addresses in it.
//
//   x         [N, D, H, W, C]  input; of two dimensions D = T = O = 1
//   packed_w  filters as the lanes of a warp take them: [block of output channels][slice][step][FILTER_TILES tiles of output channels][lane][...]
//             or as four warps do (WARPGROUP): [block of output channels][slice][step][output channel tile][chunk][lane]
//   bias      [K]              read where EPILOGUE has one
//   z         [N, O, P, Q, K]  residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]  output
//   n         images N, any number
//
// With CONTIGUOUS_ROWS taps of all columns of a filter row follow each other in x. They begin at any pixel, on a multiple of STEP_W elements,
// so the window is staged in COPIES copies, shifted, in one of which they begin on a multiple of 16 bytes. The last chunk goes on
// into the next pixel, where filters are zero: an infinity there makes a NaN of it.
// Else taps are the channels of a pixel, padded to whole chunks, CHANNELS of them staged at once.
// A block takes IMAGES images, or FRAMES frames of a video, or a tile of TILE_P rows and TILE_Q columns of one, at a time, and goes on to the next such
// work tile gridDim.x work tiles away.
//
//   grid  x: work tiles that run at once;  y: block of output channels
//   warp  16 columns of WARP_P output rows, then group of WARP_TILES_K tiles of 8 output channels
//   lane  of an MMA columns lane / 4 and lane / 4 + 8, output channels 2 (lane % 4) and the next

#include "_words_f16.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_ldmatrix.cuh"

#include "_accumulators.cuh"

#include "_split_tf32.cuh"

// Problem
constexpr int C = 16, H = 6, W = 5;
constexpr int K = 24, FILTER_D = 3, R = 3, S = 5;
constexpr int O = 6, P = 6, Q = 5;
constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 2;
[[maybe_unused]] constexpr bool PADDED_H = true, PADDED_W = true;
constexpr bool DEEP = true;  // of three dimensions
constexpr bool TRANSPOSED = true;  // w is [C, T, R, S, K], and its taps are in the opposite order
[[maybe_unused]] constexpr int D = 4, STRIDE_D = 1, PAD_D = 2, DILATION_D = 1;
[[maybe_unused]] constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, identity>;

// Parameters
constexpr int WARP_P = 4;  // of outputs, a warp
constexpr int WARP_TILES_K = 3, WARPS_K = 1;
constexpr int ROW_TILES = 1, COLUMN_TILES = 1, IMAGES = 1, FRAMES = 1;
constexpr int CHANNEL_SLICES = 1, SLICES = 3, INPUT_SLICES = 3, STAGES = 2;
constexpr int MIN_BLOCKS = 2;  // blocks resident on a multiprocessor
constexpr bool WARPGROUP = false, CONTIGUOUS_ROWS = false;
constexpr int PARTS = 1;  // of an operand: as it is
constexpr bool RESIDENT_FILTERS = true;
[[maybe_unused]] constexpr int PREFETCHED = 0;  // steps' inputs in registers, beside those of the MMAs that run

// Derived
constexpr int THREADS = 32, WARPS_Q = 1;
constexpr int TILE_P = 6, TILE_Q = 5;
constexpr int GROUPS_P = (TILE_P + WARP_P - 1) / WARP_P;  // groups of WARP_P rows
constexpr int GROUP_COLUMNS = 5;  // one more than TILE_Q where a spare one lets a warp's columns begin at an even one
constexpr int COLUMNS = IMAGES * GROUPS_P * GROUP_COLUMNS;
constexpr int BLOCK_TILES = WARP_TILES_K * WARPS_K;
[[maybe_unused]] constexpr int CHANNELS = 16;  // staged at once
constexpr int CHUNK_TAPS = 8, WORD_TAPS = CHUNK_TAPS / 4;  // of 16 bytes, of 4
constexpr int RUN_CHUNKS = 10;  // of a filter row
constexpr int PAIRS = RUN_CHUNKS / 2;  // of chunks of a filter row: a step for each filter row
constexpr int ODD_STEPS = RUN_CHUNKS % 2 * ((R + 1) / 2);  // of the chunks that are left, of two filter rows
constexpr int STEPS = PAIRS * R + ODD_STEPS;
constexpr bool PROMOTES = false;
[[maybe_unused]] constexpr int PROMOTED_PAIRS = R < 9 ? 9 / R : 1;  // of split operands, whose sums a tensor core keeps
[[maybe_unused]] constexpr int UNROLL = 5;  // pairs
constexpr int WINDOW_H = 8;  // rows of input of a tile, padding too
[[maybe_unused]] constexpr int COPY_ELEMENTS = 8;  // elements copied at once
[[maybe_unused]] constexpr int STEP_W = C * STRIDE_W;  // elements from a pixel's taps to the next one's
constexpr int COPIES = 1;
constexpr int ROW_CHUNKS = 27;  // of which some are unused, against bank conflicts
constexpr int COPY_CHUNKS = 216;
constexpr int STAGED_CHUNKS = COPIES * COPY_CHUNKS;  // of input
constexpr int SLICE_FILTERS = STEPS * BLOCK_TILES * 16;  // 16 bytes each
constexpr int STAGE_CHUNKS = 216;
constexpr int OUTPUT_PITCH = 24;  // elements of a pixel's staged outputs: rows of an MMA in different banks
constexpr int WARP_K = WARP_TILES_K * 8 < K ? WARP_TILES_K * 8 : K;  // of a warp
constexpr int STORE_VEC = 8;
constexpr int VECTORS = (WARP_K + STORE_VEC - 1) / STORE_VEC, STORES = (16 * VECTORS + 31) / 32;  // of a pixel, of a lane and row

constexpr int FILTER_TILES = WARP_TILES_K % 2 == 0 ? 2 : 1;  // tiles whose filters a lane loads at once

// First of the two filter rows whose last chunks make a step. Of an odd number of rows the last but one comes twice.
__device__ __forceinline__ constexpr int odd_row(int step) { return R == 1 ? 0 : 2 * step < R - 2 ? 2 * step : R - 2; }

// Where an element of a filter's row lies in w.
__device__ __forceinline__ int filter_element(int k, int filter_row, int at) {
    constexpr int ROWS = FILTER_D * R;
    if constexpr (!TRANSPOSED) return (k * ROWS + filter_row) * (S * C) + at;
    return (at % C * (ROWS * S) + (ROWS - 1 - filter_row) * S + S - 1 - at / C) * K + k;
}

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    constexpr int PACKED = 1 * SLICES * SLICE_FILTERS * 4;
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= PACKED) return;
    constexpr int GROUP = 64 * FILTER_TILES;
    const int lane = WARPGROUP ? i % 32 : i % GROUP / (2 * FILTER_TILES), chunk = WARPGROUP ? i / 32 % 2 : i % 2;
    const int tile = WARPGROUP ? i / 64 % BLOCK_TILES : i / GROUP % (BLOCK_TILES / FILTER_TILES) * FILTER_TILES + i / 2 % FILTER_TILES;
    const int step = i / (BLOCK_TILES * 64) % STEPS;
    const int k = (i / (SLICE_FILTERS * 4 * SLICES) * BLOCK_TILES + tile) * 8 + lane / 4;
    const bool paired = step < PAIRS * R;
    const int odd = step - PAIRS * R;  // step of the chunks that are left
    const int row = paired ? step % R : odd_row(odd) + chunk;
    const int in_run = paired ? step / R * 2 + chunk : RUN_CHUNKS - 1;
    const bool once = paired || (row >= 2 * odd && row < R);  // not in the step before
    Bits taps[2] = {};  // of the word
    for (int in_word = 0; in_word < WORD_TAPS; ++in_word) {
        const int tap = in_run * CHUNK_TAPS + lane % 4 * WORD_TAPS + in_word;  // of the filter row
        const int frame = DEEP ? i / (SLICE_FILTERS * 4) % SLICES / CHANNEL_SLICES : 0;
        const int channel = i / (SLICE_FILTERS * 4) % CHANNEL_SLICES * CHANNELS + tap % CHANNELS;
        const bool there = CONTIGUOUS_ROWS ? tap < S * C : channel < C;
        const int at = CONTIGUOUS_ROWS ? tap : tap / CHANNELS * C + channel;
        const int filter_row = frame * R + row;
        if (there && once && k < K) taps[in_word] = w[filter_element(k, filter_row, at)];
    }
    packed_w[i] = PARTS == 1 ? rounded(word_of(taps[0], taps[1])) : word_of(taps[0], taps[1]);
}

// A work tile: where its outputs begin.
struct WorkTile {
    static constexpr int GROUPS_O = (O + FRAMES - 1) / FRAMES;  // of frames of a video

    int image, row, column;

    // The last frames move up to end with the video: outputs of two blocks are the same.
    static __device__ __forceinline__ int first_image(unsigned group) {
        if constexpr (FRAMES == 1) return static_cast<int>(group) * IMAGES;
        return static_cast<int>(group / GROUPS_O) * O + min(static_cast<int>(group % GROUPS_O) * FRAMES, O - FRAMES);
    }

    __device__ __forceinline__ explicit WorkTile(unsigned work_tile)
        : image(first_image(work_tile / (ROW_TILES * COLUMN_TILES))),
          row(min(static_cast<int>(work_tile / COLUMN_TILES % ROW_TILES) * TILE_P, P - TILE_P)),
          column(min(static_cast<int>(work_tile % COLUMN_TILES) * TILE_Q, Q - TILE_Q)) {}
};

#include "_staged_pixels.cuh"

// A column of WARP_P output rows of a tile. A spare one repeats the last and is not stored.
struct Column {
    int image, row, column;
    bool stored;

    __device__ __forceinline__ explicit Column(unsigned index)
        : image(static_cast<int>(index / (GROUPS_P * GROUP_COLUMNS))),
          row(min(static_cast<int>(index / GROUP_COLUMNS % GROUPS_P) * WARP_P, TILE_P - WARP_P)),
          column(min(static_cast<int>(index % GROUP_COLUMNS), TILE_Q - 1)),
          stored(index < COLUMNS && index % GROUP_COLUMNS < TILE_Q) {}

    // Where its first chunk of taps is staged.
    __device__ __forceinline__ int input() const {
        return (image * WINDOW_H + row * STRIDE_H) * ROW_CHUNKS + column_at(column);
    }

    // Where its first output is, seen from the work tile's.
    __device__ __forceinline__ int output() const { return ((image * P + row) * Q + column) * K; }
};

using Vector = AlignedArray<T, STORE_VEC>;

// What is added to a lane's outputs of a row, where they are there.
__device__ __forceinline__ void load_residual(Vector (&added)[STORES], const T* residual, const int (&output_at)[STORES], unsigned left) {
#pragma unroll
    for (int v = 0; v < STORES; ++v) {
        if (static_cast<unsigned>(output_at[v]) < left) added[v] = *reinterpret_cast<const Vector*>(residual + output_at[v]);
    }
}

// A vector of a row of 16 columns, in a warp's staged outputs.
__device__ __forceinline__ T* staged_vector(T* outputs, int vector) {
    return outputs + vector / VECTORS * OUTPUT_PITCH + vector % VECTORS * STORE_VEC;
}

using Accumulators = float[WARP_P][WARP_TILES_K][4];

// Operand a of an MMA. Elements that were copied asynchronously are not rounded yet.
__device__ __forceinline__ void load_inputs(Word (&inputs)[4], const Chunk* row) {
    unsigned bits[4];
    load_matrices(bits, row);
#pragma unroll
    for (int i = 0; i < 4; ++i) inputs[i] = bits[i];
}

using Filters = AlignedArray<Word, 2 * FILTER_TILES>;

// d += a product of parts of a and b: 0 that of the big ones, 1 and 2 those of a small one and the other's big one.
__device__ __forceinline__ void multiply(float (&d)[4], const Word (&a)[4], const Word (&b)[2], int product) {
    Word a_part[4], b_part[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) a_part[i] = word_part<PARTS>(a[i], product % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) b_part[i] = word_part<PARTS>(b[i], product / 2);
    mma_m16n8(d, a_part, b_part);
}
#include "_window_steps_warp.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_mma_gemm(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias,
                T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* const staged = reinterpret_cast<Chunk*>(smem);  // [stage][copy][image][row][chunk]
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int group = warp / WARPS_Q;
    packed_w += static_cast<int>(blockIdx.y) * (SLICES * SLICE_FILTERS);
    Chunk* const block_filters = staged + STAGES * STAGE_CHUNKS;  // where they are resident
    if constexpr (RESIDENT_FILTERS) {
        for (int i = thread; i < SLICES * SLICE_FILTERS; i += THREADS) copy_async<16>(block_filters + i, packed_w + i);
        if constexpr (WARPGROUP) {
            copy_async_commit();
            copy_async_wait<0>();
            fence_bulk();
            __syncthreads();
        }
    }
    T* const outputs =
        reinterpret_cast<T*>(block_filters + (RESIDENT_FILTERS ? SLICES * SLICE_FILTERS : 0)) + warp * (2 * 16 * OUTPUT_PITCH);
    const int first_k = (static_cast<int>(blockIdx.y) * BLOCK_TILES + group * WARP_TILES_K) * 8;

    const unsigned first_column = warp % WARPS_Q * 16;
    const int column_input = Column(min(first_column + threadIdx.x % 16, COLUMNS - 1u)).input();
    int output_at[STORES];  // what this lane stores of a row, seen from the work tile's outputs; -1 for nothing
#pragma unroll
    for (int i = 0; i < STORES; ++i) {
        const unsigned vector = i * 32 + threadIdx.x % 32;
        const Column column(first_column + vector / VECTORS);
        const int k = static_cast<int>(vector % VECTORS) * STORE_VEC;
        const bool there = vector < 16 * VECTORS && column.stored && first_k + k < K;
        output_at[i] = there ? column.output() + k : -1;
    }

    const unsigned groups = FRAMES > 1 ? static_cast<unsigned>(n) * WorkTile::GROUPS_O : (static_cast<unsigned>(n) * O + IMAGES - 1) / IMAGES;
    const unsigned work_tiles = groups * (ROW_TILES * COLUMN_TILES);

    Fetched fetched;
    if constexpr (Fetched::USED) {
        if (STAGES > 1 && blockIdx.x < work_tiles) {
            fetched.load(x, blockIdx.x, 0, n);
            fetched.stage(staged);
        }
        copy_async_commit();
    }
    unsigned copied_tile = blockIdx.x;
    int copied_slice = 0;
    const auto copy_next = [&](int stage) {
        if (copied_tile < work_tiles) {
            copy_inputs(staged + stage * STAGE_CHUNKS, x, copied_tile, copied_slice, n);
            if constexpr (!RESIDENT_FILTERS) {
                Chunk* const to = staged + stage * STAGE_CHUNKS + STAGED_CHUNKS;
                const Chunk* const slice_filters = packed_w + copied_slice * SLICE_FILTERS;
                for (int i = thread; i < SLICE_FILTERS; i += THREADS) copy_async<16>(to + i, slice_filters + i);
            }
            if (++copied_slice == INPUT_SLICES) {
                copied_slice = 0;
                copied_tile += gridDim.x;
            }
        }
        copy_async_commit();
    };
    if constexpr (!Fetched::USED) {
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage) copy_next(stage);
    }

    int stage = 0;
    for (unsigned work_tile = blockIdx.x; work_tile < work_tiles; work_tile += gridDim.x) {
        Accumulators accumulators[FRAMES];
#pragma unroll
        for (int frame = 0; frame < FRAMES; ++frame) clear(accumulators[frame]);
#pragma unroll 1
        for (int slice = 0; slice < INPUT_SLICES; ++slice) {
            // What registers are loaded with: the slice so many stages on, or the first of the next work tile.
            const bool last = slice + STAGES > INPUT_SLICES;
            const unsigned next = last ? work_tile + gridDim.x : work_tile;
            [[maybe_unused]] const int next_slice = last ? 0 : slice + STAGES - 1;
            if constexpr (Fetched::USED) {
                if constexpr (STAGES == 1) __syncthreads();
                if (next < work_tiles) fetched.load(x, next, next_slice, n);
                if constexpr (STAGES == 1) fetched.stage(staged);
                copy_async_wait<0>();
                __syncthreads();
            } else if constexpr (STAGES == 1) {
                __syncthreads();
                copy_next(0);
                copy_async_wait<0>();
                __syncthreads();
            } else {
                copy_async_wait<STAGES - 2>();
                __syncthreads();
                copy_next(stage == 0 ? STAGES - 1 : stage - 1);
            }
            const Chunk* const inputs = staged + stage * STAGE_CHUNKS;
#pragma unroll
            for (int frame = 0; frame < FRAMES; ++frame) {
                const int filter_slice = slice - frame * CHANNEL_SLICES;
                if (FRAMES > 1 && static_cast<unsigned>(filter_slice) >= static_cast<unsigned>(SLICES)) continue;
                const Chunk* const slice_filters = RESIDENT_FILTERS ? block_filters + filter_slice * SLICE_FILTERS : inputs + STAGED_CHUNKS;
                add_slice(accumulators[frame], inputs + column_input, slice_filters, group);
            }
            if (Fetched::USED && STAGES > 1 && next < work_tiles) fetched.stage(staged + (1 - stage) * STAGE_CHUNKS);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }

        // A warp stages the outputs of 16 columns of a row and stores them in order, a row here and the next one there. A residual is
        // staged where the outputs will be that it is added to.
        const WorkTile to(work_tile);
        const unsigned left = min(IMAGES, n * O - to.image) * (P * Q * K);
#pragma unroll
        for (int frame = 0; frame < FRAMES; ++frame) {
            T* const tile_outputs = y + ((static_cast<long long>(to.image + frame) * P + to.row) * Q + to.column) * K + first_k;
            [[maybe_unused]] const T* const tile_residual = nullptr;
            [[maybe_unused]] Vector added[STORES];  // of a row
            if constexpr (EPILOGUE::HAS_RESIDUAL) load_residual(added, tile_residual, output_at, left);
#pragma unroll
            for (int i = 0; i < WARP_P; ++i) {
                T* const row_outputs = outputs + (frame * WARP_P + i) % 2 * (16 * OUTPUT_PITCH);
                if constexpr (EPILOGUE::HAS_RESIDUAL) {
#pragma unroll
                    for (int v = 0; v < STORES; ++v) {
                        if (static_cast<unsigned>(output_at[v]) >= left) continue;
                        *reinterpret_cast<Vector*>(staged_vector(row_outputs, v * 32 + lane)) = added[v];
                    }
                    if (i + 1 < WARP_P) load_residual(added, tile_residual + (i + 1) * (Q * K), output_at, left);
                    __syncwarp();
                }
#pragma unroll
                for (int j = 0; j < WARP_TILES_K; ++j) {
                    const int k = j * 8 + lane % 4 * 2;
#pragma unroll
                    for (int l = 0; l < 2; ++l) {
                        AlignedArray<T, 2> pair;
                        if constexpr (EPILOGUE::HAS_RESIDUAL) {
                            pair = *reinterpret_cast<const AlignedArray<T, 2>*>(row_outputs + (l * 8 + lane / 4) * OUTPUT_PITCH + k);
                        }
#pragma unroll
                        for (int v = 0; v < 2; ++v) {
                            const int at = min(first_k + k + v, K - 1);
                            if constexpr (EPILOGUE::HAS_RESIDUAL) {
                                pair.at[v] = from_float<T>(finish<EPILOGUE>(accumulators[frame][i][j][2 * l + v], bias, at, to_float(pair.at[v])));
                            } else {
                                pair.at[v] = from_float<T>(finish<EPILOGUE>(accumulators[frame][i][j][2 * l + v], bias, at));
                            }
                        }
                        *reinterpret_cast<AlignedArray<T, 2>*>(row_outputs + (l * 8 + lane / 4) * OUTPUT_PITCH + k) = pair;
                    }
                }
                __syncwarp();
#pragma unroll
                for (int v = 0; v < STORES; ++v) {
                    if (static_cast<unsigned>(output_at[v]) >= left) continue;
                    const T* const from = staged_vector(row_outputs, v * 32 + lane);
                    *reinterpret_cast<Vector*>(tile_outputs + output_at[v] + i * (Q * K)) = *reinterpret_cast<const Vector*>(from);
                }
            }
        }
    }
}
