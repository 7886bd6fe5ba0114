// gemm batch 2 m 40 n 72 k 136 f16 bias_relu
// gemm_split_k_sm90 tile_n=64 tile_m=32 splits=1 stages=2

// D[n, m] = sum over k of B[n, k] * A[k, m], for each of a batch: columns of y are the rows of MMAs, depth = K, split over SPLITS blocks.
// A = op(a) and B = op(b), TMA tiles, depth-major or transposed.  Tile TILE_N x TILE_M of a cluster; tile space batch * ceil(N / TILE_N) * ceil(M / TILE_M).
// Parts: operands -> _operands_sm90, mainloop -> _mainloop_sm90, reduction and epilogue -> _split_k_sm90.
//
// Matrix product for Hopper with split K, y = activation(op(a) * op(b) + bias), each of a batch for itself.
//
//   a      [batch, M, K]  input
//   b      [batch, K, N]  input
//   bias   [N]            read where EPILOGUE has one
//   y      [batch, M, N]  output
//   batch  any number
//
// Columns of y are the rows of a warpgroup's MMAs and rows of y their columns. A cluster of SPLITS blocks has a tile of TILE_M x TILE_N,
// each block a part of the depth. Their partial sums meet through distributed shared memory: a block adds all of them for its share of
// the rows, in the same order whenever, and stores these.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K of the depth, of both operands, as a stage
//   consumers  multiply stages out of shared memory, leave their accumulators there, and finish and store the block's share

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

#include "_epilogue_tma_16.cuh"

#include "_operands_sm90.cuh"

// Problem
constexpr int N = 72;
constexpr bool A_TRANSPOSED = false, B_TRANSPOSED = true;  // as operands, whose rows are of depth
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_M = 32, TILE_N = 64, TILE_K = 64;
constexpr int SPLITS = 1;
constexpr int STAGES = 2;

// Derived
constexpr int CONSUMERS = 1, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int ROWS = TILE_M / 8;                                          // of eight rows of y
constexpr int K_TILES = 3;
constexpr int K_BLOCKS = 4;  // MMAs in depth of a stage: none of padding alone
constexpr int TILES_M = 2, TILES_N = 2;
constexpr int A_ROWS = 32, STAGE_BYTES = 12288, BUFFER_BYTES = 24576;
constexpr int SHARES = 4;                          // of a tile's rows that a block finishes, at most

// d = b [64 x 16] * a [16 x TILE_M] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[4][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 1, 0;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_f16_transposed<1, 0>(d, a, b, accumulate);
#endif
}

#include "_split_k_sm90.cuh"

using Mma = StagedMma<STAGE_BYTES, K_BLOCKS, B_TRANSPOSED, A_TRANSPOSED>;
using Cluster = SplitK<T, EPILOGUE, Boxes4d, SPLITS, CONSUMERS, ROWS>;
constexpr int SHARE_BYTES = Cluster::BOXES * Cluster::BOX_BYTES;

extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(THREADS)
gemm_split_k_sm90(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ TensorMap y_map,
                  const T* __restrict__ bias, int) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;                          // [stage] b [TILE_N][TILE_K], then a [A_ROWS][TILE_K]
    unsigned char* const epilogue_stages = smem + BUFFER_BYTES;  // [consumer][share][box] outputs [8][TILE_K]
    auto& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(epilogue_stages + CONSUMERS * SHARES * SHARE_BYTES);

    const int warp = canonical_warp_index();
    const int rank = static_cast<int>(blockIdx.x) % SPLITS, tile = static_cast<int>(blockIdx.x) / SPLITS;
    const int first_column = tile % TILES_N * TILE_N, row = tile / TILES_N % TILES_M * TILE_M, product = tile / (TILES_N * TILES_M);
    const int begin = K_TILES * rank / SPLITS, end = K_TILES * (rank + 1) / SPLITS;
    PipelineState<STAGES> state;
    if (warp < 4) {
        if (threadIdx.x == 0) {
            pipeline.init(4 * CONSUMERS);
            barrier_init_fence();
        }
        __syncwarp();
        arrive_threads<THREADS>(CONSUMERS + 1);  // and the first loads are under way before the others come
        begin_dependent();
        if (threadIdx.x > 0) return;
#pragma unroll 1
        for (int k_tile = begin; k_tile < end; ++k_tile, ++state) {
            pipeline.producer_acquire(state, STAGE_BYTES);
            unsigned char* const stage = stages + state.index * STAGE_BYTES;
            Barrier* const full = pipeline.full + state.index;
            load_operand<B_TRANSPOSED, TILE_N>(stage, &b_map, full, first_column, k_tile * TILE_K, product);
            load_operand<A_TRANSPOSED, A_ROWS>(stage + TILE_N * OPERAND_ROW_BYTES, &a_map, full, row, k_tile * TILE_K, product);
        }
        return;
    }
    sync_threads<THREADS>(CONSUMERS + 1);  // for the barriers
    begin_dependent();
    const int consumer = warp / 4 - 1, thread = static_cast<int>(threadIdx.x) % 128, lane = static_cast<int>(threadIdx.x) % 32;
    const int column = first_column + consumer * 64;
    unsigned char* const outputs = epilogue_stages + consumer * (SHARES * SHARE_BYTES);
    if (thread == 0) prefetch_tma_descriptor(&y_map);
    float biases[1][2] = {};
    load_biases<EPILOGUE, N>(biases, bias, column, warp, lane);

    const unsigned long long b_operand = operand_descriptor<B_TRANSPOSED, TILE_K>(stages + consumer * (MMA_ROWS * OPERAND_ROW_BYTES));
    const unsigned long long a_operand = operand_descriptor<A_TRANSPOSED, TILE_K>(stages + TILE_N * OPERAND_ROW_BYTES);
    float d[1][ROWS][4];
    collective_mma<Mma>(d, pipeline, state, b_operand, a_operand, 0, end - begin, lane);
    Cluster::reduce(d, biases[0], stages, outputs, nullptr, rank, consumer, thread, warp, lane);
    Cluster::store(outputs, y_map, rank, column, row, product, consumer, thread);
}
