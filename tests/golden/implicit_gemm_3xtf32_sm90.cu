// conv2d n2 c36 9x8 k20 3x3 stride 2 pad 1 f32 nhwc bias_relu
// implicit_gemm_3xtf32_sm90 tile_m=64 tile_n=128 epilogue_subtiles=2

// D[k, nopq] = sum over t, r, s, c of W[k, trsc] * X[trsc, nopq]: M = K output channels, N = N*O*P*Q pixels, depth = T*R*S*C; of groups, those of one.
// A = packed_w [2, K, T, R, S, C], depth-major, TMA tile.  B = x [N, D, H, W, C], depth-major, TMA im2col of one tap.
// Tile TILE_M x TILE_N; tile space ceil(K / TILE_M) * ceil(N*O*P*Q / TILE_N).
// Parts: pixels -> _im2col_sm90, mainloop -> _mainloop_sm90, epilogue -> _epilogue_sm90.
//
//   x         [N, D, H, W, C]     input; of two dimensions D = T = O = 1
//   packed_w  [2, K, T, R, S, C]  big and small parts of the filters
//   bias      [K]                 read where EPILOGUE has one
//   z         [N, O, P, Q, K]     residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]     output
//   n         images N, any number
//
// A float is split into a big and a small TF32: big * big + big * small + small * big is its product to some 22 bits. Tensor cores cut off
// what does not fit a sum, so that PROMOTED stages at most are summed up by them, and these sums added as floats.
// Output channels are the rows of a warpgroup's MMAs and pixels, counted through all images, their columns. A block stays and takes
// tiles gridDim.x apart; tiles of the same pixels follow each other, so that these are read once from memory.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K channels of one tap, both parts of filters and pixels, as a stage
//   splitters  the first warpgroup's other three warps: they leave the big parts of the pixels where these are, and put the small behind
//   consumers  two warpgroups multiply stages out of shared memory, finish the accumulators in registers, and store them by TMA

#include "_dtype_f32.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

#include "_accumulators.cuh"

#include "_ptx_mma.cuh"

#include "_split_tf32.cuh"

#include "_epilogue_tma_f32.cuh"

#include "_epilogue_sm90.cuh"

// Problem
constexpr int CHANNELS = 36, GROUP_K = 20;  // of a group
constexpr int K = 20, R = 3, S = 3, TAPS = 9;
constexpr int O = 1, P = 5, Q = 4;
constexpr bool POINTWISE = false;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr bool DEEP = false, FLAT = false;  // of three dimensions, of one
constexpr bool TRANSPOSED = false;  // w is [C, T, R, S, K], and its taps are in the opposite order
[[maybe_unused]] constexpr int STRIDE_D = 1, PAD_D = 0, DILATION_D = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 32;
constexpr int EPILOGUE_SUBTILES = 2;
constexpr int STAGES = 4;

// Derived
constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int SPLITTERS = 3;                                   // warps
constexpr int GROUP_N = 64;                            // pixels that a consumer computes, for 64 channels
constexpr int EPILOGUE_N = GROUP_N / EPILOGUE_SUBTILES, EPILOGUE_STAGES = 2;  // pixels staged at once
constexpr int CHANNEL_TILES = 2, K_TILES = TAPS * CHANNEL_TILES;
constexpr int K_BLOCKS = 4;  // MMAs in depth of a stage: none of padding alone
constexpr int PROMOTED = 6;                                // stages, of 72 MMAs at most
constexpr int TILES_M = 1;
constexpr int W_BYTES = TILE_M * OPERAND_ROW_BYTES, X_BYTES = TILE_N * OPERAND_ROW_BYTES;  // of one part of a stage
constexpr int STAGE_BYTES = 2 * (W_BYTES + X_BYTES);
using EpilogueTma = CollectiveEpilogue<T, EPILOGUE, Boxes2d, 1, EPILOGUE_SUBTILES, EPILOGUE_N, EPILOGUE_STAGES, EPILOGUE_N * 256>;

using Scheduler = PersistentTileScheduler<>;

struct Barriers {
    PipelineTma<STAGES> pipeline;
    Barrier split[STAGES];  // the pixels' small parts are there
};

using Residuals = Barrier[CONSUMERS][EPILOGUE_STAGES];  // have come; where EPILOGUE has one

// d = w [64 x 8] * x [8 x GROUP_N] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[8][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15, "
        "%16, %17, %18, %19, "
        "%20, %21, %22, %23, "
        "%24, %25, %26, %27, "
        "%28, %29, %30, %31"
        "}, %32, %33, p, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_tf32_shared(d, a, b, accumulate);
#endif
}

#include "_mainloop_sm90.cuh"

// Of x, for the output channels from k on.
__device__ __forceinline__ int first_channel(int k) { return k / GROUP_K * CHANNELS; }

#include "_im2col_sm90.cuh"

// The products of both operands' parts.
struct Mma : StagedMma<STAGE_BYTES, K_BLOCKS> {
    __device__ __forceinline__ static void wait(PipelineTma<STAGES>& pipeline, const PipelineState<STAGES>& state, Barrier (&split)[STAGES]) {
        pipeline.consumer_wait(state);
        barrier_wait(split + state.index, state.phase);
    }
    __device__ __forceinline__ static void multiply(float (&d)[1][GROUP_N / 8][4], unsigned long long w, unsigned long long x, int index,
                                                    bool accumulate, Barrier (&)[STAGES]) {
#pragma unroll
        for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
            const int at = index * (STAGE_BYTES / DESCRIPTOR_UNIT) + k_block * DEPTH_STEP;
            mma(d[0], w + at, x + (at + X_BYTES / DESCRIPTOR_UNIT), accumulate || k_block > 0);
            mma(d[0], w + (at + W_BYTES / DESCRIPTOR_UNIT), x + at, true);
            mma(d[0], w + at, x + at, true);
        }
        wgmma_commit();
    }
};

extern "C" __global__ void split_filters(const float* __restrict__ w, float* __restrict__ packed_w) {
    constexpr int COUNT = K * TAPS * CHANNELS;
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= COUNT) return;
    const int from = TRANSPOSED ? (i % CHANNELS * TAPS + TAPS - 1 - i / CHANNELS % TAPS) * K + i / (CHANNELS * TAPS) : i;
    packed_w[i] = tf32_part<2>(w[from], 0);
    packed_w[COUNT + i] = tf32_part<2>(w[from], 1);
}

// Splits the pixels of all stages of the block's tiles; by the threads of SPLITTERS warps.
__device__ __forceinline__ void split(unsigned char* stages, Barriers& barriers, int tiles, int thread) {
    using Chunk = AlignedArray<float, 4>;
    PipelineState<STAGES> state;
    for (int tile = Scheduler::first(); tile < tiles; tile += Scheduler::step()) {
#pragma unroll 1
        for (int k_tile = 0; k_tile < K_TILES; ++k_tile, ++state) {
            barriers.pipeline.consumer_wait(state);
            unsigned char* const x = stages + state.index * STAGE_BYTES + 2 * W_BYTES;
#pragma unroll 2
            for (int i = thread * 16; i < X_BYTES; i += SPLITTERS * 32 * 16) {
                const Chunk whole = *reinterpret_cast<const Chunk*>(x + i);
                Chunk big, small;
#pragma unroll
                for (int j = 0; j < 4; ++j) big.at[j] = tf32_part<2>(whole.at[j], 0), small.at[j] = tf32_part<2>(whole.at[j], 1);
                store_operand(x + i, big);
                store_operand(x + X_BYTES + i, small);
            }
            fence_bulk();
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(barriers.split + state.index);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_implicit_gemm_3xtf32_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                                 const __grid_constant__ TensorMap y_map, const float* __restrict__ bias, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;  // [stage] filters [2][TILE_M][TILE_K], then pixels [2][TILE_N][TILE_K]
    unsigned char* const epilogue_stages = stages + STAGES * STAGE_BYTES;  // [consumer][epilogue stage][box] outputs [EPILOGUE_N][TILE_K]
    Barriers& barriers = *reinterpret_cast<Barriers*>(epilogue_stages + CONSUMERS * EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    PipelineTma<STAGES>& pipeline = barriers.pipeline;
    [[maybe_unused]] Residuals& residuals = *reinterpret_cast<Residuals*>(&barriers + 1);

    const int warp = canonical_warp_index();
    const int tiles = (n * (O * P * Q) + TILE_N - 1) / TILE_N * TILES_M;
    if (threadIdx.x == 0) {
        pipeline.init(4 * CONSUMERS);
        for (int i = 0; i < STAGES; ++i) barrier_init(barriers.split + i, SPLITTERS);
        if constexpr (EPILOGUE::HAS_RESIDUAL) {
            for (int i = 0; i < CONSUMERS * EPILOGUE_STAGES; ++i) barrier_init(&residuals[0][0] + i, 1);
        }
        barrier_init_fence();
    }
    __syncthreads();
    begin_dependent();
    if (warp < 4) {
        warpgroup_reg_dealloc<56>();
        if (warp > 0) split(stages, barriers, tiles, static_cast<int>(threadIdx.x) - 32);
        if (threadIdx.x == 0) produce<2>(stages, pipeline, x_map, w_map, tiles);
        return;
    }
    warpgroup_reg_alloc<224>();
    const int consumer = warp / 4 - 1, thread = static_cast<int>(threadIdx.x) % 128, lane = static_cast<int>(threadIdx.x) % 32;
    // What is this warpgroup's of a tile.
    const int group_m = TILE_M > 64 ? consumer * 64 : 0, group_n = TILE_M > 64 ? 0 : consumer * GROUP_N;
    const unsigned long long w_operand = wgmma_descriptor(stages + group_m * OPERAND_ROW_BYTES);
    const unsigned long long x_operand = wgmma_descriptor(stages + 2 * W_BYTES + group_n * OPERAND_ROW_BYTES);
    unsigned char* const outputs = epilogue_stages + consumer * (EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    if (thread == 0) prefetch_tma_descriptor(&y_map);

    PipelineState<STAGES> state;
    PipelineState<EPILOGUE_STAGES> epilogue;
    for (int tile = Scheduler::first(); tile < tiles; tile += Scheduler::step()) {
        const int k = tile % TILES_M * TILE_M + group_m, pixel = tile / TILES_M * TILE_N + group_n;
        float biases[1][2] = {};
        load_biases<EPILOGUE, K>(biases, bias, k, warp, lane);
        float sums[1][GROUP_N / 8][4], d[1][GROUP_N / 8][4];
        clear(sums);
#pragma unroll 1
        for (int begin = 0, end; begin < K_TILES; begin = end) {
            end = min(begin + PROMOTED, K_TILES);
            const int last = collective_mma<Mma>(d, pipeline, state, w_operand, x_operand, begin, end, lane, barriers.split);
            wgmma_wait(d);
            if (lane == 0) pipeline.consumer_release(last);
            promote(sums[0], d[0]);
        }
        EpilogueTma::store(sums, biases, outputs, epilogue.index, y_map, k, pixel, 0, 0, consumer, warp, lane);
    }
    if (thread == 0) bulk_store_wait_read<0>();
}
