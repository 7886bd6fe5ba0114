// conv_transpose n 2 c 16 d 4 h 6 w 5 k 24 t 3 r 3 s 5 padding_h 1 padding_w 2 f16 nhwc bias
// conv_transpose_phases warp_m=64 warp_tiles_k=1 warps_m=2 warps_k=2 depth_bytes=64 joined=1 stages=3 arithmetic=mma min_blocks=2

// D[nopq, k] = sum over taps, c of X[nopq, taps c] * W[taps c, k] for each output phase and group: M = outputs of the phase, N = K / GROUPS output
// channels, depth = the phase's taps times C / GROUPS.
// A = x [N, D, H, W, C], gathered by cp.async.  B = packed_w.
// Tile TILE_M x TILE_K; tile space ceil(outputs of a phase / TILE_M) * phases * GROUPS * ceil(K / GROUPS / TILE_K).
//
//   x         [N, D, H, W, C]  input; of fewer dimensions the first have size 1
//   packed_w  [phase][group][output channel, padded][tap of the phase][input channel, padded]
//   bias      [K]              read where EPILOGUE has one
//   z         [N, O, P, Q, K]  residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]  output
//   n         images N, any number
//
//   grid  x: tile of outputs, then phase, group and block of output channels, which neighbour each other so that x is read from DRAM once
//   warp  WARP_M outputs, WARP_TILES_K tiles of 8 output channels

#include "_words_f16.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_ldmatrix.cuh"

#include "_accumulators.cuh"

#include "_split_tf32.cuh"

// Problem
constexpr int C = 16, D = 4, H = 6, W = 5;
constexpr int K = 24, FILTER_D = 3, R = 3, S = 5;
constexpr int O = 6, P = 6, Q = 5;
constexpr int STRIDE_D = 1, STRIDE_H = 1, STRIDE_W = 1;
constexpr int PADDING_D = 0, PADDING_H = 1, PADDING_W = 2;
constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;
constexpr int GROUPS = 1, GROUP_C = 16, GROUP_K = 24;  // joined ones are one group
constexpr int FILTER_C = 16, FILTER_K = 24;                      // channels of one of them
using EPILOGUE = Epilogue<true, false, identity>;

// Parameters
constexpr int WARP_M = 64, WARP_TILES_K = 1;
constexpr int STAGES = 3, MIN_BLOCKS = 2;
[[maybe_unused]] constexpr int PARTS = 1;  // of an operand

// Derived
constexpr int THREADS = 128, WARPS_M = 2;
constexpr int TILE_M = 128, TILE_K = 16, BLOCKS_K = 2, COLUMNS = 2;
constexpr int PHASE_O = 6, PHASE_P = 6, PHASE_Q = 5;  // most outputs of a phase
constexpr int CHUNKS = 4;  // of a row of a stage
constexpr int CHUNK_C = 8, GROUP_CHUNKS = 2;
constexpr int ROW_CHUNKS = 92;  // of packed filters
[[maybe_unused]] constexpr int PROMOTED = 12;  // stages of split operands that a tensor core sums up
constexpr int STAGE_CHUNKS = (TILE_M + TILE_K) * CHUNKS;
constexpr int OUTPUT_PITCH = 24;
constexpr int COPIED_C = 8;  // channels copied at once
constexpr int STORED_K = 8;  // channels stored at once

static_assert(sizeof(Chunk) == CHUNK_C * sizeof(Bits), "a chunk is 16 bytes of channels");

#include "_phase.cuh"

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Chunk* __restrict__ packed_w) {
    constexpr int PACKED = COLUMNS * TILE_K * ROW_CHUNKS;
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= PACKED) return;
    const int chunk = i % ROW_CHUNKS, k = i / ROW_CHUNKS % (BLOCKS_K * TILE_K), group = i / ROW_CHUNKS / (BLOCKS_K * TILE_K) % GROUPS;
    const Phase phase(i / ROW_CHUNKS / (BLOCKS_K * TILE_K) / GROUPS);
    const int tap = chunk / GROUP_CHUNKS;
    Bits elements[CHUNK_C] = {};
    if (k < GROUP_K && tap < phase.taps()) {
        for (int j = 0; j < CHUNK_C; ++j) {
            const int c = chunk % GROUP_CHUNKS * CHUNK_C + j;
            if (c >= GROUP_C || c / FILTER_C != k / FILTER_K) continue;
            elements[j] = w[((group * GROUP_C + c) * (FILTER_D * R * S) + phase.tap(tap)) * FILTER_K + k % FILTER_K];
        }
    }
    packed_w[i] = staged_chunk<true>(elements);
}

// Where a chunk of a row of inputs or filters lies in a stage: of eight neighbouring rows in different banks.
__device__ __forceinline__ int chunk_at(int row, int chunk) {
    return row * CHUNKS + (chunk ^ row / (8 / CHUNKS) % CHUNKS);
}

// A pixel of x, inside or not.
struct Input {
    const Bits* at;
    int d, h, w;
};

// What a thread copies of a tile's inputs and filters, a stage at a time.
struct Copies {
    static constexpr int ROW_STEP = THREADS / CHUNKS, INPUTS = (TILE_M + ROW_STEP - 1) / ROW_STEP, FILTERS = (TILE_K + ROW_STEP - 1) / ROW_STEP;
    static_assert(THREADS % CHUNKS == 0, "a thread copies the same chunk of each of its rows");

    const Phase& phase;
    Input inputs[INPUTS];
    const Chunk* filters;
    int c, tap_d = 0, tap_h = 0, tap_w = 0;  // the chunk's first channel, in chunks, and its tap of the phase

    __device__ __forceinline__ Copies(const Phase& phase, const Bits* x, const Chunk* filters, int first, int pixels) : phase(phase), c(chunk()) {
        this->filters = filters + row() * ROW_CHUNKS + chunk();
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) {
            const Output output(first + row() + i * ROW_STEP, pixels, phase);
            Input& input = inputs[i];
            input.d = output.d + phase.d.first_input, input.h = output.h + phase.h.first_input, input.w = output.w + phase.w.first_input;
            input.at = x + (((static_cast<long long>(output.image) * D + input.d) * H + input.h) * W + input.w) * C;
            if (!output.there) input.w = -1;
        }
        carry();
    }
    __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / CHUNKS; }
    __device__ __forceinline__ static int chunk() { return static_cast<int>(threadIdx.x) % CHUNKS; }

    // Goes on to the tap that has channel c.
    __device__ __forceinline__ void carry() {
        while (c >= GROUP_CHUNKS) {
            c -= GROUP_CHUNKS;
            if (++tap_w < phase.w.taps) continue;
            tap_w = 0;
            if (++tap_h < phase.h.taps) continue;
            tap_h = 0, ++tap_d;
        }
    }

    // Starts the copies of the next stage; behind the last tap it has zeros.
    __device__ __forceinline__ void next(Chunk* stage) {
        const int back_d = tap_d * phase.d.INPUT_STEP, back_h = tap_h * phase.h.INPUT_STEP, back_w = tap_w * phase.w.INPUT_STEP;
        const int from = c * CHUNK_C - ((back_d * H + back_h) * W + back_w) * C;
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) {
            const int to_row = row() + i * ROW_STEP;
            if (TILE_M % ROW_STEP != 0 && to_row >= TILE_M) break;
            const Input& input = inputs[i];
            const bool inside = tap_d < phase.d.taps && phase.d.inside(input.d - back_d) && phase.h.inside(input.h - back_h) && phase.w.inside(input.w - back_w);
            Bits* const to = reinterpret_cast<Bits*>(stage + chunk_at(to_row, chunk()));
#pragma unroll
            for (int j = 0; j < CHUNK_C; j += COPIED_C) {
                const bool there = inside && (GROUP_C % CHUNK_C == 0 || c * CHUNK_C + j < GROUP_C);
                if constexpr (COPIED_C * sizeof(Bits) >= 4) {
                    copy_async<COPIED_C * sizeof(Bits)>(to + j, input.at + from + j, there);
                } else {
                    to[j] = there ? input.at[from + j] : Bits{0};
                }
            }
        }
#pragma unroll
        for (int i = 0; i < FILTERS; ++i) {
            const int to_row = row() + i * ROW_STEP;
            if (TILE_K % ROW_STEP != 0 && to_row >= TILE_K) break;
            copy_async<16>(stage + TILE_M * CHUNKS + chunk_at(to_row, chunk()), filters + i * (ROW_STEP * ROW_CHUNKS));
        }
        filters += CHUNKS;
        c += CHUNKS;
        carry();
    }
};

using Accumulators = float[WARP_M / 16][WARP_TILES_K][4];

// Where an MMA leaves a lane's sums.
__device__ __forceinline__ int lane_row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
__device__ __forceinline__ int lane_column(int l) { return static_cast<int>(threadIdx.x) % 4 * 2 + l; }

// A part of words of an operand as an MMA takes it.
template <int WORDS>
__device__ __forceinline__ void operand_part(Word (&words)[WORDS], const unsigned* bits, int part) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        Word word;
        memcpy(&word, bits + i, sizeof word);
        words[i] = PARTS == 1 ? rounded(word) : word_part<PARTS>(word, part);
    }
}

// accumulators += a stage, of a warp's outputs and output channels.
__device__ __forceinline__ void add_stage(Accumulators& accumulators, const Chunk* stage, int first_m, int first_k) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk += 4) {
        unsigned filters[WARP_TILES_K][4];  // of two MMAs in depth
#pragma unroll
        for (int j = 0; j < WARP_TILES_K; ++j) {
            load_matrices(filters[j], stage + TILE_M * CHUNKS + chunk_at(first_k + j * 8 + lane % 8, chunk + lane / 8));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < WARP_M / 16; ++i) {
                unsigned inputs[4];
                load_matrices(inputs, stage + chunk_at(first_m + i * 16 + lane % 16, chunk + half * 2 + lane / 16));
                // Small products first; that of two small parts is too small to count.
#pragma unroll
                for (int product = 2 * PARTS - 2; product >= 0; --product) {
                    Word a[4];
                    operand_part(a, inputs, product % 2);
#pragma unroll
                    for (int j = 0; j < WARP_TILES_K; ++j) {
                        Word b[2];
                        operand_part(b, filters[j] + 2 * half, product / 2);
                        mma_m16n8(accumulators[i][j], a, b);
                    }
                }
            }
        }
    }
}
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv_transpose_phases(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias,
                      T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    long long* const output_pixels = reinterpret_cast<long long*>(smem);  // [TILE_M], -1 for none
    Chunk* const stages = reinterpret_cast<Chunk*>(output_pixels + TILE_M);  // [stage] inputs [TILE_M][CHUNKS], then filters [TILE_K][CHUNKS]
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    const int column = static_cast<int>(blockIdx.x % COLUMNS), first = static_cast<int>(blockIdx.x / COLUMNS) * TILE_M;
    const int group = column / BLOCKS_K % GROUPS, group_k = column % BLOCKS_K * TILE_K;
    const int pixels = n * (PHASE_O * PHASE_P * PHASE_Q);
    const Phase phase(column / (BLOCKS_K * GROUPS));

    for (int i = thread; i < TILE_M; i += THREADS) {
        const Output output(first + i, pixels, phase);
        output_pixels[i] = output.there ? output.pixel(phase) : -1;
    }
    Copies copies(phase, x + group * GROUP_C, packed_w + static_cast<long long>(column) * (TILE_K * ROW_CHUNKS), first, pixels);
    const int steps = (phase.taps() * GROUP_CHUNKS + CHUNKS - 1) / CHUNKS;
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < steps) copies.next(stages + stage * STAGE_CHUNKS);
        copy_async_commit();
    }
    Accumulators accumulators;
    clear(accumulators);
    const int first_m = warp % WARPS_M * WARP_M, first_k = warp / WARPS_M * (8 * WARP_TILES_K);
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) copies.next(stages + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_CHUNKS);
        copy_async_commit();
        add_stage(accumulators, stages + stage * STAGE_CHUNKS, first_m, first_k);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    __syncthreads();

    // Sums are staged where the inputs were, and finished as they are stored, neighbouring channels by neighbouring threads.
    float* const sums = reinterpret_cast<float*>(stages);  // [TILE_M][OUTPUT_PITCH]
#pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WARP_TILES_K; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* const to = sums + (first_m + i * 16 + half * 8 + lane_row()) * OUTPUT_PITCH + first_k + j * 8;
                *reinterpret_cast<AlignedArray<float, 2>*>(to + lane_column(0)) = {accumulators[i][j][2 * half], accumulators[i][j][2 * half + 1]};
            }
        }
    }
    __syncthreads();
    using Vector = AlignedArray<T, STORED_K>;
    constexpr int VECTORS = TILE_K / STORED_K;  // of an output
    for (int i = thread; i < TILE_M * VECTORS; i += THREADS) {
        const int row = i / VECTORS, in_tile = i % VECTORS * STORED_K;
        const long long pixel = output_pixels[row];
        if (pixel < 0 || group_k + in_tile >= GROUP_K) continue;
        const int k = group * GROUP_K + group_k + in_tile;
        Vector outputs;
#pragma unroll
        for (int j = 0; j < STORED_K; ++j) {
            const float sum = sums[row * OUTPUT_PITCH + in_tile + j];
            outputs.at[j] = from_float<T>(finish<EPILOGUE>(sum, bias, k + j));
        }
        *reinterpret_cast<Vector*>(y + pixel * K + k) = outputs;
    }
}
