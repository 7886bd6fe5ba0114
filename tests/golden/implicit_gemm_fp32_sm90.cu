// conv2d n2 c36 9x8 k20 3x3 stride 2 pad 1 f32 nhwc bias_relu
// implicit_gemm_fp32_sm90 thread_m=8 thread_n=8 warps_m=1 warps_n=4 unroll=1 min_blocks=2

// D[k, nopq] = sum over t, r, s, c of W[k, trsc] * X[trsc, nopq]: M = K output channels, N = N*O*P*Q pixels, depth = T*R*S*C; of groups, those of one.
// A = w [K, T, R, S, C], depth-major, TMA tile.  B = x [N, D, H, W, C], depth-major, TMA im2col of one tap.
// Tile TILE_M x TILE_N; tile space ceil(K / TILE_M) * ceil(N*O*P*Q / TILE_N).
// Parts: pixels -> _im2col_sm90.
//
//   x     [N, D, H, W, C]  input; of two dimensions D = T = O = 1
//   w     [K, T, R, S, C]  filters; of groups, here of a group's channels
//   bias  [K]              read where EPILOGUE has one
//   z     [N, O, P, Q, K]  residual, added where EPILOGUE has one
//   y     [N, O, P, Q, K]  output
//   n     images N, any number
//
// A block stays and takes tiles gridDim.x apart; tiles of the same pixels follow each other, so that these are read once from memory.
//
//   producer   a thread of the last warpgroup: TMA loads TILE_K channels of one tap, of filters and pixels, as a stage
//   consumers  the other warpgroups. A thread loads four channels of an output channel or a pixel at once. Threads of a warp: four along the output
//              channels, of four neighbours each, and eight along the pixels. Neighbouring lanes have the same pixels, so half a warp reads
//              eight of them, 128 bytes in all banks, at once.

#include "_dtype_f32.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

// Problem
constexpr int CHANNELS = 36, GROUP_K = 20;  // of a group
constexpr int K = 20, R = 3, S = 3, TAPS = 9;
constexpr int O = 1, P = 5, Q = 4;
constexpr bool POINTWISE = false;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr bool DEEP = false, FLAT = false;  // of three dimensions, of one
[[maybe_unused]] constexpr int STRIDE_D = 1, PAD_D = 0, DILATION_D = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int THREAD_M = 8, THREAD_N = 8, WARPS_M = 1;
constexpr int TILE_M = 32, TILE_N = 256, TILE_K = 32;
constexpr int STAGES = 3, UNROLL = 1, MIN_BLOCKS = 2;

// Derived
constexpr int WARPS = 4, THREADS = 32 * (WARPS + 4);  // that multiply, and with the producer's warpgroup
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 216;
constexpr int CHANNEL_TILES = 2, K_TILES = TAPS * CHANNEL_TILES;
constexpr int CHUNKS = OPERAND_ROW_BYTES / 16, LAST_CHUNKS = 1;  // of a row, of the last channels
constexpr int TILES_M = 1;
constexpr int W_BYTES = TILE_M * OPERAND_ROW_BYTES, STAGE_BYTES = W_BYTES + TILE_N * OPERAND_ROW_BYTES;

using Scheduler = PersistentTileScheduler<>;

using Chunk = AlignedArray<float, 4>;

// Of x, for the output channels from k on.
__device__ __forceinline__ int first_channel(int k) { return k / GROUP_K * CHANNELS; }

#include "_im2col_sm90.cuh"
// A chunk of a row of a stage, whose chunks TMA swaps by the row's place in eight.
__device__ __forceinline__ Chunk chunk_of(const unsigned char* row, int chunk, int place) {
    return *reinterpret_cast<const Chunk*>(row + (chunk ^ place) * 16);
}

// sums += filters * pixels of a stage.
__device__ __forceinline__ void multiply(float (&sums)[THREAD_N][THREAD_M], const unsigned char* filter_rows, const unsigned char* pixel_rows,
                                         int chunks, int lane_m, int lane_n) {
#pragma unroll UNROLL
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Chunk filters[THREAD_M];
#pragma unroll
        for (int m = 0; m < THREAD_M; ++m) {
            filters[m] = chunk_of(filter_rows + (m / 4 * 16 + m % 4) * OPERAND_ROW_BYTES, chunk, lane_m % 2 * 4 + m % 4);
        }
#pragma unroll
        for (int i = 0; i < THREAD_N; ++i) {
            const Chunk pixel = chunk_of(pixel_rows + i * (8 * OPERAND_ROW_BYTES), chunk, lane_n);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
#pragma unroll
                for (int m = 0; m < THREAD_M; ++m) sums[i][m] = fmaf(filters[m].at[c], pixel.at[c], sums[i][m]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_implicit_gemm_fp32_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const float* __restrict__ bias,
                               float* __restrict__ y, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;  // [stage] filters [TILE_M][TILE_K], then pixels [TILE_N][TILE_K]
    PipelineTma<STAGES>& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(stages + STAGES * STAGE_BYTES);
    const int warp = canonical_warp_index(), lane = static_cast<int>(threadIdx.x) % 32;
    const int pixels = n * (O * P * Q), tiles = (pixels + TILE_N - 1) / TILE_N * TILES_M;
    if (threadIdx.x == 0) {
        pipeline.init(WARPS);
        barrier_init_fence();
    }
    __syncthreads();
    begin_dependent();
    if (warp >= WARPS) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x == 32 * WARPS) produce(stages, pipeline, x_map, w_map, tiles);
        return;
    }
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    const int lane_m = lane % 2 + lane / 16 * 2, lane_n = lane / 2 % 8;
    const int first_m = warp % WARPS_M * (4 * THREAD_M) + lane_m * 4, first_n = warp / WARPS_M * (8 * THREAD_N) + lane_n;
    PipelineState<STAGES> state;
    for (int tile = Scheduler::first(); tile < tiles; tile += Scheduler::step()) {
        float sums[THREAD_N][THREAD_M] = {};
#pragma unroll 1
        for (int k_tile = 0; k_tile < K_TILES; ++k_tile, ++state) {
            const unsigned char* const stage = stages + state.index * STAGE_BYTES;
            pipeline.consumer_wait(state);
            multiply(sums, stage + first_m * OPERAND_ROW_BYTES, stage + W_BYTES + first_n * OPERAND_ROW_BYTES,
                     (k_tile + 1) % CHANNEL_TILES == 0 ? LAST_CHUNKS : CHUNKS, lane_m, lane_n);
            fence_bulk();
            __syncwarp();
            if (lane == 0) pipeline.consumer_release(state.index);
        }
        const int k = tile % TILES_M * TILE_M + first_m, first_pixel = tile / TILES_M * TILE_N + first_n;
#pragma unroll
        for (int i = 0; i < THREAD_N; ++i) {
            const int pixel = first_pixel + i * 8;
            if (pixel >= pixels) break;
#pragma unroll
            for (int m = 0; m < THREAD_M; m += 4) {
                if (k + m * 4 >= K) break;
                const long long at = static_cast<long long>(pixel) * K + k + m * 4;
                Chunk outputs;
#pragma unroll
                for (int j = 0; j < 4; ++j) outputs.at[j] = finish<EPILOGUE>(sums[i][m + j], bias, k + m * 4 + j);
                *reinterpret_cast<Chunk*>(y + at) = outputs;
            }
        }
    }
}
