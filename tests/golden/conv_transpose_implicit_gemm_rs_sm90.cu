// conv_transpose n 2 c 36 w 50 k 64 s 3 dilation_w 3 f32 nhwc bias_add
// conv_transpose_implicit_gemm_rs_sm90 arithmetic=split tile_m=64 blocks=1

// D[nopq, k] = sum over t, r, s, c of X[nopq, trsc] * W[trsc, k]: M = N*O*P*Q pixels, N = K output channels, depth = T*R*S*C.
// A = x, TMA tile of one tap, from shared memory through registers.  B = packed_w [PARTS, K, T, R, S, C], depth-major, TMA tile.
// Tile TILE_N pixels x TILE_M output channels; tile space ceil(N*O*P*Q / TILE_N) * ceil(K / TILE_M).
// Parts: pixels -> _pixels_nhwc_sm90, _pixels_nchw_sm90.
//
//   x         [N, D, H, W, C]         input; of two dimensions D = T = O = 1; with NCHW [N, C, D, H, W]
//   packed_w  [PARTS, K, T, R, S, C]  filters as MMAs take them: one TF32, or a big and a small part; C in the order of a lane's channels
//   bias      [K]                     read where EPILOGUE has one
//   z         [N, O, P, Q, K]         residual, added where EPILOGUE has one; with NCHW [N, K, O, P, Q]
//   y         [N, O, P, Q, K]         output; with NCHW [N, K, O, P, Q]
//   n         images N, any number
//
// TMA loads NCHW from multiples of 16 bytes on only, so that a stage of pixels has all columns that a filter row's taps read. Threads shift them.
// wgmma reads TF32 operands from shared memory only with the depth contiguous, but operand a may come from registers. So threads load
// pixels in the layout that x has, and split them there. The parts are not stored again.
// A float is split into a big and a small TF32: big * big + big * small + small * big is its product to some 22 bits. Tensor cores cut off
// what does not fit a sum, so that PROMOTED stages at most are summed up by them, and these sums added as floats.
// A block stays and takes tiles gridDim.x apart; tiles of the same pixels follow each other, so that these are read once from memory.
//
//   producer   a warp of the first warpgroup: TMA loads TILE_K channels, of one tap all parts of filters as a stage, and pixels as another, of NCHW
//              those that all taps of a filter row read
//   consumers  two warpgroups load pixels to registers, multiply, and store what they finish

#include "_dtype_f32.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

#include "_ptx_ldmatrix.cuh"

#include "_accumulators.cuh"

#include "_ptx_mma.cuh"

#include "_split_tf32.cuh"

// Problem
constexpr int CHANNELS = 36, K = 64, R = 1, S = 3, TAPS = 3;
[[maybe_unused]] constexpr int O = 1, P = 1, Q = 56;
[[maybe_unused]] constexpr bool POINTWISE = false;
[[maybe_unused]] constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 0, PAD_W = 6;
constexpr int DILATION_H = 1, DILATION_W = 3;
constexpr bool DEEP = false, FLAT = true;  // of three dimensions, of one
constexpr bool NHWC = true, TRANSPOSED = true;
[[maybe_unused]] constexpr int STRIDE_D = 1, PAD_D = 0, DILATION_D = 1;
using EPILOGUE = Epilogue<true, true, identity>;

// Parameters
constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 32;
constexpr int BLOCKS = 1, PARTS = 2;
constexpr int STAGES = 7, X_STAGES = 7;  // of filters, and of pixels

// Derived
constexpr int CONSUMERS = 2;  // warpgroups
constexpr int GROUPS = 1, GROUP_K = 64;
constexpr int K_TILES = TAPS * 2;  // stages of filters
constexpr int SHARED_TAPS = 1;  // of a stage of pixels
[[maybe_unused]] constexpr int BOXES = 1, SHIFT = 0;  // of a segment's window, columns in front of it
constexpr int PADDED_C = 40;
constexpr int K_BLOCKS = 4;  // MMAs in depth of a stage: none of padding alone
constexpr int PROMOTED = PARTS == 2 ? 6 : K_TILES;  // stages, of 72 MMAs at most
[[maybe_unused]] constexpr int ROW_Q = 56, ROWS = 1;
constexpr int TILES_M = 1;
[[maybe_unused]] constexpr int VECTOR = 0;  // pixels of a lane that follow each other
[[maybe_unused]] constexpr int STAGED_K = 0, STAGED_PITCH = 68;  // outputs in shared memory, of a warpgroup
constexpr int W_BYTES = TILE_M * OPERAND_ROW_BYTES;  // of one part of a stage
constexpr int W_STAGE_BYTES = 16384, X_STAGE_BYTES = 16384;

using Scheduler = PersistentTileScheduler<>;

using Fragment = unsigned[4];  // a lane's part of 16 pixels and 8 channels

// d = x [64 x 8] * w [8 x TILE_M] (+ d), x in registers, w in shared memory.
__device__ __forceinline__ void mma(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15, "
        "%16, %17, %18, %19, "
        "%20, %21, %22, %23, "
        "%24, %25, %26, %27, "
        "%28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(wgmma_word(a[0])), "r"(wgmma_word(a[1])), "r"(wgmma_word(a[2])), "r"(wgmma_word(a[3])), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_tf32_shared(d, a, b, accumulate);
#endif
}

// A finished output; `added` is the residual's element where EPILOGUE has one.
__device__ __forceinline__ float finished(float sum, float bias, [[maybe_unused]] float added) {
    if constexpr (EPILOGUE::HAS_RESIDUAL) {
        return finish<EPILOGUE>(sum, bias, added);
    } else {
        return finish<EPILOGUE>(sum, bias);
    }
}

#include "_pixels_nhwc_sm90.cuh"

#include "_store_pixels_nhwc_sm90.cuh"

extern "C" __global__ void pack_filters(const float* __restrict__ w, float* __restrict__ packed_w) {
    constexpr int COUNT = K * TAPS * PADDED_C;
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= COUNT) return;
    const int k = i / (TAPS * PADDED_C), c = i % PADDED_C / 8 * 8 + channel_of(i % 8);
    const int tap = TRANSPOSED ? TAPS - 1 - i / PADDED_C % TAPS : i / PADDED_C % TAPS;
    const int outer = TRANSPOSED ? c : k, inner = TRANSPOSED ? k : c;
    constexpr int INNERS = TRANSPOSED ? K : CHANNELS;
    const float value = c < CHANNELS ? w[NHWC ? (outer * TAPS + tap) * INNERS + inner : (outer * INNERS + inner) * TAPS + tap] : 0.0f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) packed_w[part * COUNT + i] = tf32_part<PARTS>(value, part);
}

struct Pipelines {
    PipelineTma<STAGES> filters;
    PipelineTma<X_STAGES> pixels;
};

// Loads all stages of the block's tiles; by a warp, whose lanes load a box of pixels each.
__device__ __forceinline__ void produce(unsigned char* stages, unsigned char* x_stages, Pipelines& pipelines, const TensorMap& x_map,
                                        const TensorMap& w_map, int tiles, int lane) {
    PipelineState<STAGES> state;
    PipelineState<X_STAGES> x_state;
    for (int tile = Scheduler::first(); tile < tiles; tile += Scheduler::step()) {
        const int k = tile % TILES_M * TILE_M, group_c = GROUPS > 1 ? k / GROUP_K * CHANNELS : 0;
        const PixelBox box(tile / TILES_M, lane);
#pragma unroll 1
        for (int tap = 0; tap < TAPS; tap += SHARED_TAPS) {
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c += TILE_K, ++x_state) {
                if (lane == 0) pipelines.pixels.producer_acquire(x_state, X_STAGE_BYTES);
                __syncwarp();
                if (lane < PixelBox::COUNT) box.load(x_stages + x_state.index * X_STAGE_BYTES, x_map, pipelines.pixels.full + x_state.index, group_c + c, tap);
#pragma unroll 1
                for (int i = 0; i < SHARED_TAPS; ++i, ++state) {
                    if (lane != 0) continue;
                    pipelines.filters.producer_acquire(state, W_STAGE_BYTES);
                    tma_load(stages + state.index * W_STAGE_BYTES, &w_map, pipelines.filters.full + state.index, c, tap + i, k, 0);
                }
            }
        }
    }
}

// Starts d (+)= the products of a block of 8 channels, of filters and a lane's pixels.
__device__ __forceinline__ void multiply(float (&d)[BLOCKS][TILE_M / 8][4], const Fragment (&x)[BLOCKS][PARTS], unsigned long long w, bool accumulate) {
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        if constexpr (PARTS == 2) {
            mma(d[i], x[i][0], w + W_BYTES / DESCRIPTOR_UNIT, accumulate);
            mma(d[i], x[i][1], w, true);
            mma(d[i], x[i][0], w, true);
        } else {
            mma(d[i], x[i][0], w, accumulate);
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
conv2d_implicit_gemm_rs_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const float* __restrict__ bias,
                             const float* __restrict__ z, float* __restrict__ y, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;  // [stage] filters [PARTS][TILE_M][32]
    unsigned char* const x_stages = stages + STAGES * W_STAGE_BYTES;  // [stage] pixels [TILE_N][TILE_K] or [TILE_N / 32][BOXES][TILE_K][32]
    float* const staged = reinterpret_cast<float*>(x_stages + X_STAGES * X_STAGE_BYTES);  // [consumer] outputs [STAGED_K][STAGED_PITCH]
    Pipelines& pipelines = *reinterpret_cast<Pipelines*>(staged + CONSUMERS * STAGED_K * STAGED_PITCH);
    const int warp = canonical_warp_index(), lane = static_cast<int>(threadIdx.x) % 32;
    const int tiles = PixelBox::tiles(n) * TILES_M;
    if (threadIdx.x == 0) {
        pipelines.filters.init(4 * CONSUMERS);
        pipelines.pixels.init(4 * CONSUMERS);
        barrier_init_fence();
    }
    __syncthreads();
    begin_dependent();
    if (warp < 4) {
        warpgroup_reg_dealloc<24>();
        if (warp == 0) produce(stages, x_stages, pipelines, x_map, w_map, tiles, lane);
        return;
    }
    warpgroup_reg_alloc<240>();
    const int first_pixel = (warp - 4) * (16 * BLOCKS);  // of this warp's, in a tile
    LanePixels lane_pixels(first_pixel, lane);
    const unsigned long long w_operand = wgmma_descriptor(stages);

    PipelineState<STAGES> state;
    PipelineState<X_STAGES> x_state;
    for (int tile = Scheduler::first(); tile < tiles; tile += Scheduler::step()) {
        float d[BLOCKS][TILE_M / 8][4];
        [[maybe_unused]] float sums[BLOCKS][TILE_M / 8][4];
        if constexpr (PARTS == 2) clear(sums);
        Fragment x[2][BLOCKS][PARTS];  // of two blocks of channels: one is loaded while the other is multiplied
#pragma unroll 1
        for (int begin = 0, end; begin < K_TILES; begin = end) {
            end = min(begin + PROMOTED, K_TILES);
            wgmma_begin(d);
            int last = 0;  // stage whose MMAs are under way
#pragma unroll 1
            for (int k_tile = begin; k_tile < end; ++k_tile, ++state) {
                const int tap = k_tile % SHARED_TAPS;  // of those of a stage of pixels
                if (tap == 0) pipelines.pixels.consumer_wait(x_state);
                lane_pixels.begin(tap);
                pipelines.filters.consumer_wait(state);
#pragma unroll
                for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
                    Fragment(&loaded)[BLOCKS][PARTS] = x[k_block % 2];
                    Fragment whole[BLOCKS];
                    lane_pixels.load(whole, x_stages + x_state.index * X_STAGE_BYTES, k_block);
#pragma unroll
                    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
                        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
                            for (int j = 0; j < 4; ++j) {
                                const float value = __uint_as_float(whole[i][j]);
                                loaded[i][part][j] = __float_as_uint(PARTS == 1 ? to_tf32(value) : word_part<PARTS>(value, part));
                            }
                        }
                    }
                    wgmma_fence();
                    multiply(d, loaded, w_operand + (state.index * (W_STAGE_BYTES / DESCRIPTOR_UNIT) + k_block * DEPTH_STEP), k_tile > begin || k_block > 0);
                    wgmma_commit();
                    // Two blocks in a row use the same registers where a stage has an odd number of them.
                    wgmma_wait_group<K_BLOCKS % 2 == 1 ? 0 : 1>();
                    if (k_block == 0 && k_tile > begin && lane == 0) pipelines.filters.consumer_release(last);
                }
                last = state.index;
                if (tap == SHARED_TAPS - 1) {
                    if (lane == 0) pipelines.pixels.consumer_release(x_state.index);
                    ++x_state;
                }
            }
            wgmma_wait(d);
            if (lane == 0) pipelines.filters.consumer_release(last);
            if constexpr (PARTS == 2) promote_columns(sums, d);
        }
        store(PARTS == 2 ? sums : d, staged, y, z, bias, tile / TILES_M, first_pixel, tile % TILES_M * TILE_M, lane, n);
    }
}
