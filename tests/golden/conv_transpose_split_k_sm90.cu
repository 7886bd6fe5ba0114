// conv_transpose n 2 c 16 d 4 h 6 w 5 k 24 t 3 r 3 s 5 padding_h 1 padding_w 2 f16 nhwc bias
// conv_transpose_split_k_sm90 tile_m=64 tile_n=32 splits=4 stages=4

// D[k, nopq] = sum over t, r, s, c of W[k, trsc] * X[trsc, nopq]: M = K output channels, N = N*O*P*Q pixels, depth = T*R*S*C, split over SPLITS blocks.
// A = w [K, T, R, S, C], depth-major, TMA tile.  B = x [N, D, H, W, C], depth-major, TMA im2col of one tap.
// Tile TILE_M x TILE_N of a cluster; tile space ceil(K / TILE_M) * ceil(N*O*P*Q / TILE_N).
// Parts: pixels -> _im2col_sm90, mainloop -> _mainloop_sm90, reduction and epilogue -> _split_k_sm90.
//
//   x         [N, D, H, W, C]  input; of two dimensions D = T = O = 1
//   w         [K, T, R, S, C]  filters, packed from those of a transposed convolution, w [C, T, R, S, K]
//   bias      [K]              read where EPILOGUE has one
//   z         [N, O, P, Q, K]  residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]  output
//   n         images N, any number
//
// Output channels are the rows of a warpgroup's MMAs and pixels, counted through all images, their columns. A cluster of SPLITS blocks has a
// tile of TILE_M x TILE_N, each block a part of the tile's taps and channels. Their partial sums meet through distributed shared memory:
// a block adds all of them for its share of the pixels, in the same order whenever, and stores these.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K channels of one tap, of filters and pixels, as a stage
//   consumers  multiply stages out of shared memory, leave their accumulators there, and finish and store the block's share

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

#include "_epilogue_tma_16.cuh"

// Problem
constexpr int K = 24;
constexpr bool POINTWISE = false;
[[maybe_unused]] constexpr int R = 3, S = 5;
constexpr int O = 6, P = 6, Q = 5;
constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr bool DEEP = true, FLAT = false;  // of three dimensions, of one
[[maybe_unused]] constexpr int STRIDE_D = 1, PAD_D = 2, DILATION_D = 1;
using EPILOGUE = Epilogue<true, false, identity>;

// Parameters
constexpr int TILE_M = 64, TILE_N = 32, TILE_K = 64;
constexpr int SPLITS = 4;
constexpr int STAGES = 4;

// Derived
constexpr int CONSUMERS = 1, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int COLUMNS = TILE_N / 8;                                       // of eight pixels
constexpr int CHANNEL_TILES = 1, K_TILES = 45;
constexpr int K_BLOCKS = 1;  // MMAs in depth of a stage: none of padding alone
constexpr int TILES_M = 1;
constexpr int STAGE_BYTES = 12288, BUFFER_BYTES = 49152;
constexpr int SHARES = 1;                          // of a tile's columns that a block finishes, at most

struct Barriers {
    PipelineTma<STAGES> pipeline;
    Barrier residual[CONSUMERS];  // has come
};

// d = w [64 x 16] * x [16 x TILE_N] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[4][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_f16_shared(d, a, b, accumulate);
#endif
}

#include "_split_k_sm90.cuh"

#include "_im2col_sm90.cuh"

constexpr int TAPS = 45, CHANNELS = 16;

#include "_pack_transposed_filters.cuh"

using Cluster = SplitK<T, EPILOGUE, Boxes2d, SPLITS, CONSUMERS, COLUMNS>;
constexpr int SHARE_BYTES = Cluster::BOXES * Cluster::BOX_BYTES;

// Loads the stages of the block's part of a tile.
__device__ __forceinline__ void produce_part(unsigned char* stages, PipelineTma<STAGES>& pipeline, const TensorMap& x_map,
                                        const TensorMap& w_map, int k, int pixel, int begin, int end) {
    PipelineState<STAGES> state;
    const Corner corner = window_corner(pixel);
#pragma unroll 1
    for (int k_tile = begin; k_tile < end; ++k_tile, ++state) {
        const int tap = k_tile / CHANNEL_TILES, c = k_tile % CHANNEL_TILES * TILE_K;
        pipeline.producer_acquire(state, STAGE_BYTES);
        unsigned char* const stage = stages + state.index * STAGE_BYTES;
        Barrier* const full = pipeline.full + state.index;
        tma_load(stage, &w_map, full, c, tap, k);
        load_pixels(stage + TILE_M * OPERAND_ROW_BYTES, x_map, full, c, pixel, corner, tap);
    }
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(THREADS, 1)
conv2d_split_k_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                    const __grid_constant__ TensorMap y_map, const T* __restrict__ bias, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;                           // [stage] filters [TILE_M][TILE_K], then pixels [TILE_N][TILE_K]
    unsigned char* const epilogue_stages = smem + BUFFER_BYTES;   // [consumer][share][box] outputs [8][TILE_K]
    Barriers& barriers = *reinterpret_cast<Barriers*>(epilogue_stages + CONSUMERS * SHARES * SHARE_BYTES);
    PipelineTma<STAGES>& pipeline = barriers.pipeline;

    const int warp = canonical_warp_index();
    const int rank = static_cast<int>(blockIdx.x) % SPLITS, tile = static_cast<int>(blockIdx.x) / SPLITS;
    const int first_k = tile % TILES_M * TILE_M, pixel = tile / TILES_M * TILE_N;
    const int begin = K_TILES * rank / SPLITS, end = K_TILES * (rank + 1) / SPLITS;
    if (warp < 4) {
        if (threadIdx.x == 0) {
            pipeline.init(4 * CONSUMERS);
            for (int i = 0; i < CONSUMERS; ++i) barrier_init(barriers.residual + i, 1);
            barrier_init_fence();
        }
        __syncwarp();
        arrive_threads<THREADS>(CONSUMERS + 1);  // and the first loads are under way before the others come
        begin_dependent();
        if (threadIdx.x == 0) produce_part(stages, pipeline, x_map, w_map, first_k, pixel, begin, end);
        return;
    }
    sync_threads<THREADS>(CONSUMERS + 1);  // for the barriers
    begin_dependent();
    const int consumer = warp / 4 - 1, thread = static_cast<int>(threadIdx.x) % 128, lane = static_cast<int>(threadIdx.x) % 32;
    const int k = first_k + consumer * 64;
    unsigned char* const outputs = epilogue_stages + consumer * (SHARES * SHARE_BYTES);
    if (thread == 0) {
        prefetch_tma_descriptor(&y_map);
    }
    float biases[1][2] = {};
    load_biases<EPILOGUE, K>(biases, bias, k, warp, lane);

    const unsigned long long w_operand = wgmma_descriptor(stages + consumer * (MMA_ROWS * OPERAND_ROW_BYTES));
    const unsigned long long x_operand = wgmma_descriptor(stages + TILE_M * OPERAND_ROW_BYTES);
    PipelineState<STAGES> state;
    float d[1][COLUMNS][4];
    collective_mma<StagedMma<STAGE_BYTES, K_BLOCKS>>(d, pipeline, state, w_operand, x_operand, begin, end, lane);
    Cluster::reduce(d, biases[0], stages, outputs, barriers.residual + consumer, rank, consumer, thread, warp, lane);
    Cluster::store(outputs, y_map, rank, k, pixel, 0, consumer, thread);
}
