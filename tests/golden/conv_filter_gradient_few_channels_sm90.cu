// conv_filter_gradient n 3 c 3 h 9 w 16 k 72 r 5 s 7 stride_h 2 stride_w 2 pad_h 2 pad_w 3 pad_h_end 2 pad_w_end 3 bf16
// conv_filter_gradient_few_channels_sm90 tile_k=64 window_rows=2 piece=48

// D[rsc, k] = sum over pixels npq of X[npq, rsc] * dY[npq, k]: M = R * TAP_COLUMNS taps and channels, N = K output channels, depth = N*P*Q pixels.
// A = x [N, H, W, C], TMA window of rows, from there to registers.  B = dy [N, P, Q, K], TMA tile. Rows of both are the depth.
// Tile TILE_COLUMNS x TILE_K; tile space ceil(K / TILE_K).
// Parts: shares of the work, sums of parts -> _stream_k.
//
//   x          [N, H, W, C]     input, as rows of pieces [N, H, W * C / PIECE, PIECE]
//   dy         [N, P, Q, K]     gradient of the output
//   dw         [K, R, S, C]     gradient of the filters
//   workspace  [block][tile]    sums of parts of tiles [TILE_K][TILE_COLUMNS]
//   n          images N, any number
//
//   producer   one thread of the first warpgroup: TMA loads WINDOW_ROWS rows of dy, in boxes of 64 channels, and the rows of x that they meet
//   consumers  a warpgroup has 64 columns of the filters, a lane two neighbours of them, a word of 4 bytes: it loads that word of the windows
//              of two pixels and swaps their halves, so that each register has one column of both
//
//        x row   |0 0 0 0 0|. . . . . . . . . . . . . . . .|0 0 0 0 0|
//   pixel 0            |------- S * C ------|
//   pixel 1                  |------- S * C ------|          a window begins STRIDE_W * C elements after the one before

#include "_dtype_bf16.cuh"

#include "_sm90.cuh"

#include "_ptx_prefetch_map.cuh"

#include "_ptx_wgmma_transposed.cuh"

#include "_accumulators.cuh"

// Problem
constexpr int C = 3, STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 2, PAD_W = 3, DILATION_H = 1;
constexpr int GROUP_K = 72;

// Parameters
constexpr int TILE_K = 64, WINDOW_ROWS = 2, PIECE = 48;

// Derived
// For _stream_k.cuh: a tap is a row of the filter, of S * C channels.
constexpr int R = 5, S = 1, TAPS = R, GROUP_C = 21;
constexpr int TAP_COLUMNS = 22, LEAD = 1, ROW_WORDS = 11;
constexpr int GROUPS = 1, JOINED = 1;
constexpr bool ALL_TAPS = false;  // a tile has all columns
constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int TILE_COLUMNS = 128, TILES_K = 2, TILES_COLUMNS = 1, TILES = TILES_K;
constexpr int REDUCE_THREADS = 256, REDUCE_LANES = 16;
constexpr int ROW_PIXELS = 16, DEPTH = WINDOW_ROWS * ROW_PIXELS, IMAGE_STEPS = 3;
constexpr int LEFT = 48, PITCH = 144, WINDOW_H = 7;  // of a row of x in shared memory, elements
constexpr int DY_BYTES = TILE_K / 64 * DEPTH * OPERAND_ROW_BYTES, X_BYTES = 2048, STAGE_BYTES = 6144, STAGES = 8;
constexpr int LOADED_BYTES = DY_BYTES + 2 * WINDOW_H * PITCH;
static_assert(STAGE_BYTES == DY_BYTES + X_BYTES && DY_BYTES % 1024 == 0, "a stage begins where the pattern of the swizzle does");

// d = x [64 x 16], a lane's words * dy [16 x TILE_K] (+ d), in shared memory, whose rows are the depth.
__device__ __forceinline__ void mma(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15, "
        "%16, %17, %18, %19, "
        "%20, %21, %22, %23, "
        "%24, %25, %26, %27, "
        "%28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
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
    wgmma_bf16_transposed<0, 1>(d, a, b, accumulate);
#endif
}

// Of a tile, for n images.
__device__ __forceinline__ int steps_of_tile(int n) { return n * IMAGE_STEPS; }

#include "_stream_k.cuh"

// Loads the steps of the block's parts of tiles.
__device__ __forceinline__ void load_parts(unsigned char* stages, PipelineTma<STAGES>& pipeline, const TensorMap& x_map, const TensorMap& dy_map, int n) {
    PipelineState<STAGES> state;
    for (Share share(n, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)); share.more();) {
        const Part part = share.take();
#pragma unroll 1
        for (int step = part.begin; step < part.end; ++step, ++state) {
            const int image = step / IMAGE_STEPS, row = step % IMAGE_STEPS * WINDOW_ROWS;
            unsigned char* const stage = stages + state.index * STAGE_BYTES;
            Barrier* const full = pipeline.full + state.index;
            pipeline.producer_acquire(state, LOADED_BYTES);
            tma_load(stage + DY_BYTES, &x_map, full, 0, -LEFT / PIECE, row * STRIDE_H - PAD_H, image);
#pragma unroll
            for (int i = 0; i < TILE_K / 64; ++i) {
                tma_load(stage + i * (DEPTH * OPERAND_ROW_BYTES), &dy_map, full, part.tile * TILE_K + i * 64, 0, row, image);
            }
        }
    }
}

// Of 16 pixels, the words of a lane: pixels 2 i, 2 i + 1, and eight further on.
constexpr int CHUNKS = DEPTH / 16, GROUP = 4;  // of a stage; whose words are loaded before their MMAs begin
using Words = unsigned[GROUP][4];

// Loads a lane's words of the chunks of a group; `x` is its word of the window of its first pixel.
__device__ __forceinline__ void load_words(Words& words, const unsigned char* x, int first) {
    constexpr int STEP = 2 * STRIDE_W * C;  // bytes from pixel to pixel
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
        const int pixel = (first + i) * 16;
        if (pixel >= DEPTH) break;
        const unsigned char* const from = x + pixel / ROW_PIXELS * (2 * STRIDE_H * PITCH) + pixel % ROW_PIXELS * STEP;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned even = *reinterpret_cast<const unsigned*>(from + 8 * half * STEP);
            const unsigned odd = *reinterpret_cast<const unsigned*>(from + (8 * half + 1) * STEP);
            words[i][2 * half] = (even & 0xffffu) | odd << 16;
            words[i][2 * half + 1] = even >> 16 | (odd & 0xffff0000u);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv_filter_gradient_few_channels_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap dy_map, float* __restrict__ workspace,
                                       int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;  // [stage] dy [TILE_K / 64][DEPTH][64], then x [WINDOW_H][PITCH]
    auto& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(stages + STAGES * STAGE_BYTES);

    const int warp = canonical_warp_index(), lane = static_cast<int>(threadIdx.x) % 32;
    if (threadIdx.x == 0) {
        prefetch_map(dy_map);
        prefetch_map(x_map);
        launch_next_stage();
        pipeline.init(4 * CONSUMERS);
        barrier_init_fence();
    }
    // Zeros behind the last row of x, which the pixels behind a row of dy may read.
    for (int stage = 0; stage < STAGES; ++stage) {
        unsigned* const behind = reinterpret_cast<unsigned*>(stages + stage * STAGE_BYTES + LOADED_BYTES);
        for (int i = static_cast<int>(threadIdx.x); i < (STAGE_BYTES - LOADED_BYTES) / 4; i += THREADS) behind[i] = 0;
    }
    __syncthreads();
    if (warp < 4) {
        if (threadIdx.x == 0) load_parts(stages, pipeline, x_map, dy_map, n);
        return;
    }
    const int consumer = warp / 4 - 1, word = consumer * 32 + warp % 4 * 8 + lane / 4;  // the lane's of a filter
    const int filter_row = min(word / ROW_WORDS, R - 1);                                // columns behind the last row are not stored
    const unsigned char* const x = stages + DY_BYTES + 2 * (filter_row * DILATION_H * PITCH + LEFT - PAD_W * C - LEAD) + word % ROW_WORDS * 4 +
                                   lane % 4 * (4 * STRIDE_W * C);
    const unsigned long long dy_operand = wgmma_descriptor_transposed<DEPTH>(stages);
    PipelineState<STAGES> state;
    for (Share share(n, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)); share.more();) {
        const Part part = share.take();
        float d[1][TILE_K / 8][4];
        clear(d);
        wgmma_begin(d);
#pragma unroll 1
        for (int step = part.begin; step < part.end; ++step, ++state) {
            pipeline.consumer_wait(state);
            const unsigned char* const from = x + state.index * STAGE_BYTES;
            const unsigned long long dy = dy_operand + state.index * (STAGE_BYTES / DESCRIPTOR_UNIT);
            Words words[2];
#pragma unroll
            for (int first = 0; first < CHUNKS; first += GROUP) {
                Words& own = words[first / GROUP % 2];
                load_words(own, from, first);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < GROUP; ++i) {
                    if (first + i < CHUNKS) mma(d[0], own[i], dy + (first + i) * (16 * ROW_STEP), true);
                }
                wgmma_commit();
                wgmma_wait_group<1>();  // the MMAs of the group before, whose words the next one's replace
            }
            wgmma_wait(d);
            fence_bulk();
            __syncwarp();
            if (lane == 0) pipeline.consumer_release(state.index);
        }
        float* const sums = sums_of(workspace, part.tile, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), share.steps) + 2 * word;
#pragma unroll
        for (int j = 0; j < TILE_K / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const AlignedArray<float, 2> pair = {d[0][j][i], d[0][j][2 + i]};
                *reinterpret_cast<AlignedArray<float, 2>*>(sums + (j * 8 + lane % 4 * 2 + i) * TILE_COLUMNS) = pair;
            }
        }
    }
}
