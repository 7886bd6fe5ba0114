// conv_filter_gradient n 3 c 72 h 9 w 8 k 80 r 3 s 3 pad_h 1 pad_w 1 pad_h_end 1 pad_w_end 1 f16
// conv_filter_gradient_sm90 tile_k=64 tile_boxes=2 shared_k=1 window_rows=0 splits=1

// D[k, trsc] = sum over pixels nopq of dY[nopq, k] * X[nopq, trsc]: M = K output channels, N = TAPS * C columns, depth = N*O*P*Q pixels; of
// several groups M and N are of JOINED groups.
// A = dy [N, O, P, Q, K], TMA tile.  B = x [N, D, H, W, C], TMA im2col of each tap, or a TMA window for all taps. Rows of both are the depth.
// Tile TILE_K x TILE_COLUMNS of a cluster; tile space ceil(K / TILE_K) * ceil(N / TILE_COLUMNS), or with windows * T * ceil(C / 64).
// Parts: steps -> _steps_*, shares of the work, sums of parts -> _stream_k, sums of a cluster -> _cluster_sums, mainloop -> _mainloop_sm90.
//
//   x          [N, D, H, W, C]     input; of fewer dimensions the first have size 1
//   dy         [N, O, P, Q, K]     gradient of the output
//   dw         [K, T, R, S, C]     gradient of the filters
//   workspace  [cluster][tile]     sums of parts of tiles [TILE_K][TILE_COLUMNS]
//   n          images N, any number
//
//   producer   one thread of the first warpgroup: TMA loads DEPTH pixels of dy and of x as a stage, in boxes of 64 channels
//   consumers  multiply stages out of shared memory and store their accumulators, or with SPLITS add those of the cluster's blocks first

#include "_dtype_f16.cuh"

#include "_sm90.cuh"

#include "_ptx_prefetch_map.cuh"

#include "_ptx_wgmma_transposed.cuh"

#include "_accumulators.cuh"

// Problem
[[maybe_unused]] constexpr int R = 3, S = 3;
constexpr int TAPS = 9;
[[maybe_unused]] constexpr int O = 1, P = 9, Q = 8;
[[maybe_unused]] constexpr int STRIDE_D = 1, STRIDE_H = 1, STRIDE_W = 1;
[[maybe_unused]] constexpr int PAD_D = 0, PAD_H = 1, PAD_W = 1;
[[maybe_unused]] constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;
[[maybe_unused]] constexpr bool DEEP = false, FLAT = false, POINTWISE = false;
[[maybe_unused]] constexpr int GROUPS = 1;
constexpr int JOINED = 1;                               // groups that are multiplied as one
constexpr int GROUP_C = 72, GROUP_K = 80;  // channels of these

// Parameters
constexpr int SHARED_K = 1, BLOCK_K = 64, TILE_K = 64;
constexpr int TILE_COLUMNS = 128;
constexpr int SPLITS = 1, CLUSTER_BLOCKS = SPLITS * SHARED_K;

// Derived
constexpr int CONSUMERS = 1, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int ROWS = 64, COLUMNS = 128;                       // what one computes of a tile
constexpr bool SPLIT_COLUMNS = false;                          // the warpgroups share the columns, not the output channels
constexpr int REDUCE_THREADS = 256, REDUCE_LANES = 2;
constexpr int TILES_K = 2, TILES_COLUMNS = 9, TILES = 18;
constexpr int TAP_COLUMNS = 128, LEAD = 0;
constexpr bool ALL_TAPS = false;  // columns of a tile: of a filter frame
[[maybe_unused]] constexpr int DEPTH = 64, X_ROWS = 128;  // rows of a stage: of each box of dy, of x
constexpr int DY_BYTES = BLOCK_K / 64 * DEPTH * OPERAND_ROW_BYTES, STAGE_BYTES = 24576, STAGES = 8;
constexpr int BUFFER_BYTES = 196608;
[[maybe_unused]] constexpr int WINDOW_ROWS = 0, PITCH = 9, WINDOW_H = 2, IMAGE_STEPS = 1;

// d = dy [64 x 16] * x [16 x COLUMNS] (+ d), operands in shared memory whose rows are the depth.
__device__ __forceinline__ void mma(float (&d)[16][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15, "
        "%16, %17, %18, %19, "
        "%20, %21, %22, %23, "
        "%24, %25, %26, %27, "
        "%28, %29, %30, %31, "
        "%32, %33, %34, %35, "
        "%36, %37, %38, %39, "
        "%40, %41, %42, %43, "
        "%44, %45, %46, %47, "
        "%48, %49, %50, %51, "
        "%52, %53, %54, %55, "
        "%56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]),
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_f16_transposed<1, 1>(d, a, b, accumulate);
#endif
}

#include "_mainloop_sm90.cuh"

// Of a tile, its first input channel of tap 0 but for the column, and its first output channel.
template <class Tile>
__device__ __forceinline__ int first_channel(const Tile& tile) { return GROUPS == 1 ? 0 : tile.group * GROUP_C; }
template <class Tile>
__device__ __forceinline__ int first_filter(const Tile& tile) { return GROUPS == 1 ? tile.first_k : tile.group * GROUP_K + tile.first_k; }

#include "_columns_own.cuh"

#include "_steps_pixels.cuh"

#include "_stream_k.cuh"

// The steps of the block, or of its cluster.
__device__ __forceinline__ Share share_of_cluster(int n) {
    return Share(n, static_cast<int>(blockIdx.x) / CLUSTER_BLOCKS, static_cast<int>(gridDim.x) / CLUSTER_BLOCKS);
}

// The block's steps of a part.
__device__ __forceinline__ Part part_of_block(const Part& part) {
    if constexpr (SPLITS == 1) return part;
    const int rank = static_cast<int>(blockIdx.x) / SHARED_K % SPLITS, steps = part.end - part.begin;
    return {part.tile, part.begin + steps * rank / SPLITS, part.begin + steps * (rank + 1) / SPLITS};
}

// Loads the steps of the block's parts of tiles.
__device__ __forceinline__ void load_parts(unsigned char* stages, PipelineTma<STAGES>& pipeline, const TensorMap& x_map, const TensorMap& dy_map, int n) {
    PipelineState<STAGES> state;
    for (Share share = share_of_cluster(n); share.more();) {
        const Part part = part_of_block(share.take());
        const Tile tile(part.tile);
#pragma unroll 1
        for (int step = part.begin; step < part.end; ++step, ++state) {
            pipeline.producer_acquire(state, LOADED_BYTES);
            load_step(stages + state.index * STAGE_BYTES, pipeline.full + state.index, x_map, dy_map, tile, step);
        }
    }
}

extern "C" __global__ void
__launch_bounds__(THREADS, 1)
conv_filter_gradient_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap dy_map, float* __restrict__ workspace,
                          [[maybe_unused]] float* __restrict__ dw, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;  // [stage] dy [TILE_K / 64][DEPTH][64], then x [X_ROWS][64]
    auto& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(stages + BUFFER_BYTES);

    const int warp = canonical_warp_index(), lane = static_cast<int>(threadIdx.x) % 32;
    if (threadIdx.x == 0) {
        prefetch_map(dy_map);
        prefetch_map(x_map);
        launch_next_stage();
        pipeline.init(4 * CONSUMERS * SHARED_K);
        barrier_init_fence();
    }
    clear_behind_boxes(stages);
    __syncthreads();  // for the barriers
    if (warp < 4) {
        if (threadIdx.x == 0) load_parts(stages, pipeline, x_map, dy_map, n);
        return;
    }
    const int consumer = warp / 4 - 1;
    const int row = SPLIT_COLUMNS || ALL_TAPS ? 0 : consumer * ROWS, column = SPLIT_COLUMNS || ALL_TAPS ? consumer * COLUMNS : 0;
    const unsigned long long dy_operand = wgmma_descriptor_transposed<DEPTH>(stages + row / 64 * (DEPTH * OPERAND_ROW_BYTES));
    const unsigned long long x_operand = columns_operand(stages + DY_BYTES, consumer);
    const int first_row = static_cast<int>(blockIdx.x) % SHARED_K * BLOCK_K + row + warp % 4 * 16;  // the warp's, of a tile
    // What a warp stores at once, and where it puts that in order.
    constexpr int SHARE = ROWS / 64 * (COLUMNS / 8) / SPLITS, AT_ONCE = SHARE % MOST_FRAGMENTS == 0 ? MOST_FRAGMENTS : SHARE % 2 == 0 ? 2 : 1;
    float* const rows = reinterpret_cast<float*>(stages + (SPLITS > 1 ? 4 * BLOCK_K * TILE_COLUMNS : 0) + (warp - 4) * ROWS_BYTES);
    PipelineState<STAGES> state;
    for (Share share = share_of_cluster(n); share.more();) {
        const Part part = part_of_block(share.take());
        float d[ROWS / 64][COLUMNS / 8][4];
        const Tile tile(part.tile);
        float* const sums_of_part = sums_of(workspace, part.tile, blockIdx.x / CLUSTER_BLOCKS, gridDim.x / CLUSTER_BLOCKS, share.steps);
        const auto store = [&](int at_row, int at_column, const Quad& sums) {
            if (tile.is_of_group(at_row, at_column)) reinterpret_cast<Quad*>(sums_of_part)[(at_row * TILE_COLUMNS + at_column) / 4] = sums;
        };
        clear(d);  // a block of a short part may have no steps
        collective_mma<Mma>(d, pipeline, state, dy_operand, x_operand, part.begin, part.end, lane);
        wgmma_wait(d);
        sync_threads<128 * CONSUMERS>(1);  // the others have read the stages, too
#pragma unroll
        for (int i = 0; i < ROWS / 64; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j += AT_ONCE) {
                Quad sums[AT_ONCE];
#pragma unroll
                for (int l = 0; l < AT_ONCE; ++l) sums[l] = {d[i][j + l][0], d[i][j + l][1], d[i][j + l][2], d[i][j + l][3]};
                store_rows(first_row + i * 64, column + j * 8, sums, rows, store);
            }
        }
    }
}
