// gemm batch 2 m 40 n 72 k 136 f16 bias_relu
// gemm_sm90 tile_n=128 tile_m=8 schedule=pingpong cluster_n=1 raster=8 epilogue_subtiles=1

// D[n, m] = sum over k of B[n, k] * A[k, m], for each of a batch: columns of y are the rows of MMAs, depth = K.
// A = op(a) and B = op(b), TMA tiles, depth-major or transposed.  Tile TILE_N x TILE_M; tile space batch * ceil(N / TILE_N) * ceil(M / TILE_M).
// Parts: operands -> _operands_sm90, clusters -> _blocks_*, mainloop -> _mainloop_sm90, epilogue -> _epilogue_sm90.
//
// Matrix product for Hopper, y = activation(op(a) * op(b) + bias), each of a batch for itself.
//
//   a      [batch, M, K]  input
//   b      [batch, K, N]  input
//   bias   [N]            read where EPILOGUE has one
//   y      [batch, M, N]  output
//   batch  any number
//
// Columns of y are the rows of a warpgroup's MMAs and rows of y their columns, of which there may be any multiple of eight: so a
// few rows of y are no waste. A block stays and takes tiles of TILE_M x TILE_N; RASTER tiles below each other follow one another, and
// then those to the right of them, so that both operands of the tiles under way are few, and found in the second cache.
// The blocks of a cluster have tiles side by side. Each loads its columns of b, and its part of the rows of a for all.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K of the depth, of both operands, as a stage
//   consumers  multiply stages out of shared memory, finish the accumulators in registers, and store them by TMA
//              PINGPONG: in turn, while one multiplies a tile, the other stores the tile before

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

#include "_epilogue_tma_16.cuh"

#include "_epilogue_sm90.cuh"

#include "_operands_sm90.cuh"

// Problem
constexpr int N = 72, K = 136;
constexpr bool A_TRANSPOSED = false, B_TRANSPOSED = true;  // as operands, whose rows are of depth
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_M = 8, TILE_N = 128, TILE_K = 64;
constexpr bool PINGPONG = true;
constexpr int CLUSTER_N = 1, RASTER = 8;
constexpr int STAGES = 8;

// Derived
constexpr int THREADS = 384;  // two consumer warpgroups, and the producer's
constexpr int GROUP_N = 128, BLOCKS_N = GROUP_N / 64;  // columns of a warpgroup; MMAs side by side
constexpr int EPILOGUE_M = 8, EPILOGUE_STAGES = 2;  // rows staged at once
constexpr int K_TILES = 3;
constexpr int K_BLOCKS = 4;  // MMAs in depth of a stage: none of padding alone
constexpr int TILES_M = 5, CLUSTERS_N = 1;
constexpr int A_ROWS = 8, STAGE_BYTES = (TILE_N + A_ROWS) * OPERAND_ROW_BYTES;
using EpilogueTma = CollectiveEpilogue<T, EPILOGUE, Boxes4d, BLOCKS_N, TILE_M / EPILOGUE_M, EPILOGUE_M, EPILOGUE_STAGES>;

// d = b [64 x 16] * a [16 x TILE_M] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[1][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %6, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, p, 1, 1, 1, 0;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_f16_transposed<1, 0>(d, a, b, accumulate);
#endif
}

#include "_mainloop_sm90.cuh"

#include "_blocks_alone.cuh"

struct Mma : StagedMma<STAGE_BYTES, K_BLOCKS, B_TRANSPOSED, A_TRANSPOSED> {
    __device__ __forceinline__ static void release(PipelineTma<STAGES>& pipeline, int index, int lane) {
        release_stage<CLUSTER_N>(pipeline, index, lane);
    }
};

// Where a tile begins: the rank-th one of a cluster's.
struct WorkTile {
    int row, column, product;
    __device__ WorkTile(int index, int rank) {
        constexpr int OF_PRODUCT = TILES_M * CLUSTERS_N, OF_PANEL = RASTER * CLUSTERS_N;
        product = index / OF_PRODUCT;
        const int at = index % OF_PRODUCT, above = at / OF_PANEL * RASTER, in_panel = at % OF_PANEL;
        const int height = TILES_M - above < RASTER ? TILES_M - above : RASTER;
        row = (above + in_panel % height) * TILE_M;
        column = (in_panel / height * CLUSTER_N + rank) * TILE_N;
    }
};

// Loads all stages of the block's tiles.
__device__ __forceinline__ void produce(unsigned char* stages, PipelineTma<STAGES>& pipeline, const TensorMap& a_map,
                                        const TensorMap& b_map, int first, int step, int tiles, int rank) {
    PipelineState<STAGES> state;
    for (int index = first; index < tiles; index += step) {
        const WorkTile tile(index, rank);
#pragma unroll 1
        for (int k = 0; k < K; k += TILE_K, ++state) {
            pipeline.producer_acquire(state, STAGE_BYTES);
            unsigned char* const b_stage = stages + state.index * STAGE_BYTES;
            Barrier* const full = pipeline.full + state.index;
            load_operand<B_TRANSPOSED, TILE_N>(b_stage, &b_map, full, tile.column, k, tile.product);
            load_common_operand<A_TRANSPOSED, A_ROWS, CLUSTER_N>(b_stage + TILE_N * OPERAND_ROW_BYTES, &a_map, full, rank, tile.row, k, tile.product);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_sm90(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ TensorMap y_map,
          const T* __restrict__ bias, int batch) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;                                    // [stage] b [TILE_N][TILE_K], then a [A_ROWS][TILE_K]
    unsigned char* const epilogue_stages = stages + STAGES * STAGE_BYTES;  // [consumer][epilogue stage][box] outputs [EPILOGUE_M][TILE_K]
    auto& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(epilogue_stages + 2 * EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    [[maybe_unused]] auto& mainloop_order = *reinterpret_cast<OrderedSequenceBarrier<>*>(&pipeline + 1);

    const int warp = canonical_warp_index();
    const int group = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
    using Scheduler = PersistentTileScheduler<CLUSTER_N>;
    const int rank = static_cast<int>(blockIdx.x) % CLUSTER_N, first = Scheduler::first();
    const int step = Scheduler::step(), tiles = batch * (TILES_M * CLUSTERS_N);
    if (threadIdx.x == 0) {
        pipeline.init((PINGPONG ? 4 : 8) * CLUSTER_N);
        if constexpr (PINGPONG) mainloop_order.init();
        barrier_init_fence();
    }
    sync_blocks();  // for the barriers
    begin_dependent();
    if (group == 0) {
        warpgroup_reg_dealloc<40>();
        if (threadIdx.x == 0) produce(stages, pipeline, a_map, b_map, first, step, tiles, rank);
        return;
    }
    warpgroup_reg_alloc<232>();
    const int consumer = group - 1, thread = static_cast<int>(threadIdx.x) % 128;
    const int group_column = PINGPONG ? 0 : consumer * GROUP_N;  // of a tile
    const unsigned long long b_operand = operand_descriptor<B_TRANSPOSED, TILE_K>(stages + group_column * OPERAND_ROW_BYTES);
    const unsigned long long a_operand = operand_descriptor<A_TRANSPOSED, TILE_K>(stages + TILE_N * OPERAND_ROW_BYTES);
    unsigned char* const outputs = epilogue_stages + consumer * (EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    int epilogue_stage = 0;
    if (thread == 0) prefetch_tma_descriptor(&y_map);

    PipelineState<STAGES> state;
    [[maybe_unused]] int order_phase = consumer ^ 1;  // the first warpgroup's first turn is at once
    if (PINGPONG && consumer == 1) state.advance<K_TILES>();
    for (int index = first + (PINGPONG ? consumer * step : 0); index < tiles; index += PINGPONG ? 2 * step : step) {
        const WorkTile tile(index, rank);
        const int column = tile.column + group_column;
        float biases[BLOCKS_N][2] = {};
        load_biases<EPILOGUE, N>(biases, bias, column, warp, lane);
        float d[BLOCKS_N][TILE_M / 8][4];
        if constexpr (PINGPONG) {
            mainloop_order.wait(consumer, order_phase);
            order_phase ^= 1;
        }
        const int last = collective_mma<Mma>(d, pipeline, state, b_operand, a_operand, 0, K_TILES, lane);
        if (PINGPONG && lane == 0) mainloop_order.arrive(consumer);
        wgmma_wait(d);
        Mma::release(pipeline, last, lane);
        if constexpr (PINGPONG) state.advance<K_TILES>();
        EpilogueTma::store(d, biases, outputs, epilogue_stage, y_map, column, tile.row, tile.product, 0, consumer, warp, lane);
    }
    if (thread == 0) bulk_store_wait_read<0>();
    end_blocks();
}
