// conv_statistics n 2 c 8 h 8 w 16 k 24 r 3 s 3 pad_h 1 pad_w 1 bf16 nhwc bias
// conv_statistics_implicit_gemm_sm90 tile_m=64 tile_n=128 schedule=pingpong window_rows=0 folded=1 epilogue_subtiles=2

// D[k, nopq] = sum over t, r, s, c of W[k, trsc] * X[trsc, nopq]: M = K output channels, N = N*O*P*Q pixels, depth = T*R*S*C; of groups, those of one.
// A = w [K, T, R, S, C], depth-major, TMA tile.  B = x [N, D, H, W, C], depth-major, TMA im2col of one tap, or a TMA window of x for all taps.
// Tile TILE_M x TILE_N; tile space ceil(K / TILE_M) * ceil(N*O*P*Q / TILE_N), or windows of an image in place of pixels.
// Parts: tiles -> _tiles_pixels or _tiles_windows, mainloop -> _mainloop_sm90, epilogue -> _epilogue_sm90.
//
//   x         [N, D, H, W, C]  input; of two dimensions D = T = O = 1
//   w         [K, T, R, S, C]  filters; of several groups, here of a group's channels
//   bias      [K]              read where EPILOGUE has one
//   z         [N, O, P, Q, K]  residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]  output
//   mean      [N, K]           of an image's outputs
//   variance  [N, K]           mean of (y - mean)^2
//   workspace [N, STATISTICS_SLICES, K]  Sums of a tile, or of a warpgroup's part of it
//   n         images N, any number
//
// Output channels are the rows of a warpgroup's MMAs and pixels, counted through all images or of a window, their columns, of which there may
// be any multiple of eight: so tiles of TILE_M x TILE_N divide the work evenly between multiprocessors. A block stays and takes
// tiles gridDim.x apart; tiles of the same pixels follow each other, so that these are read once from memory.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K channels of one tap as a stage, of filters and pixels, or of filters
//              beside windows of x that serve all taps
//   consumers  multiply stages out of shared memory, finish the accumulators in registers, and store them by TMA; with PINGPONG in turn:
//              while one multiplies a tile, the other stores the tile before

#include "_dtype_bf16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

#include "_epilogue_tma_16.cuh"

#include "_epilogue_sm90.cuh"

// Problem
constexpr int CHANNELS = 8;  // that an output channel is made of; of packed groups with those of the groups beside it
constexpr int K = 24, R = 3, S = 3, TAPS = 9;
[[maybe_unused]] constexpr int D = 1;
[[maybe_unused]] constexpr int O = 1, P = 8, Q = 16;  // of what TMA takes for an image
[[maybe_unused]] constexpr int PIXELS = 128;                           // of an image
[[maybe_unused]] constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
[[maybe_unused]] constexpr bool DEEP = false, FLAT = false;  // of three dimensions, of one
[[maybe_unused]] constexpr int STRIDE_D = 1, PAD_D = 0, DILATION_D = 1;
constexpr int GROUPS = 1, GROUP_C = 8, GROUP_K = 24;
[[maybe_unused]] constexpr bool POINTWISE = false;
using EPILOGUE = Epilogue<true, false, identity>;

// Parameters
constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 64;
constexpr int STAGES = 8;
constexpr bool PINGPONG = true;
constexpr int WINDOW_ROWS = 0, WINDOWS = 0;
constexpr bool WINDOWED = WINDOWS > 0;
[[maybe_unused]] constexpr bool STRIP = false;  // windows are of eight columns
[[maybe_unused]] constexpr int IMAGE_TILES = 1, STRIPS = 1, WINDOW_IMAGES = 1;  // of windows

// Derived
constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int GROUP_M = 64, GROUP_N = 128;                 // what one computes of a tile
constexpr int BLOCKS_M = GROUP_M / 64;                                    // MMAs side by side
constexpr int EPILOGUE_N = 64, EPILOGUE_STAGES = 2;   // pixels staged at once
constexpr int CHANNEL_TILES = 1, K_TILES = 9 * CHANNEL_TILES;
constexpr int K_BLOCKS = 1;  // MMAs in depth of a stage: none of padding alone
[[maybe_unused]] constexpr bool JOINED_TAPS = false;          // a stage has filters of several taps
[[maybe_unused]] constexpr int TAP_BLOCKS = 1;             // MMAs in depth of a tap, of one channel tile
[[maybe_unused]] constexpr int LAST_K_BLOCKS = 1;       // of the last channels
constexpr int TILES_M = 1;
[[maybe_unused]] constexpr bool AS_STORED = false;  // filters are [C, T, R, S, K]
constexpr int PITCH = 17;  // of a window's rows
[[maybe_unused]] constexpr int FOLDED = 1, FOLD = 64 / FOLDED;  // rows of outputs that are rows of an MMA, FOLD of it each
[[maybe_unused]] constexpr int PIXEL_BYTES = 128;  // of a window
constexpr int WINDOW_BYTES = 21504;
constexpr int STAGE_BYTES = 24576;
constexpr int RESIDUAL_BYTES = (WINDOWED && !STRIP ? WINDOW_ROWS * PITCH : EPILOGUE_N) * 64 * static_cast<int>(sizeof(T));  // that TMA brings
constexpr int RELEASES = 4 * (PINGPONG ? 1 : CONSUMERS);  // of a stage, by warps
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

using WindowPipeline = PipelineTma<WINDOWED ? WINDOWS : 1>;

// d = w [64 x 16] * x [16 x GROUP_N] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[16][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
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
        "}, %64, %65, p, 1, 1, 0, 0;}"
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
    wgmma_bf16_shared(d, a, b, accumulate);
#endif
}

#include "_mainloop_sm90.cuh"

// Of x, for the output channels from k on.
__device__ __forceinline__ int first_channel(int k) { return GROUPS > 1 ? k / GROUP_K * GROUP_C : 0; }

#include "_tiles_pixels.cuh"

using EpilogueTma = CollectiveEpilogue<T, EPILOGUE, Boxes, BLOCKS_M, GROUP_N / EPILOGUE_N, EPILOGUE_N, EPILOGUE_STAGES, RESIDUAL_BYTES>;
constexpr int STATISTICS_SLICES = 1;  // of an image

#include "_statistics_sm90.cuh"

using EpilogueStatistics = EpilogueWithStatistics<EpilogueTma, BLOCKS_M, GROUP_N / EPILOGUE_N, EPILOGUE_N, EPILOGUE_STAGES>;
extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_implicit_gemm_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                          const __grid_constant__ TensorMap y_map, const T* __restrict__ bias, Sums* __restrict__ workspace, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const windows = smem;                             // [window] pixels [WINDOW_BYTES / PIXEL_BYTES][PIXEL_BYTES]
    unsigned char* const stages = windows + WINDOWS * WINDOW_BYTES;  // [stage] filters [TILE_M][TILE_K], then pixels [TILE_N][TILE_K]
    unsigned char* const epilogue_stages = stages + STAGES * STAGE_BYTES;  // [consumer][epilogue stage][box] outputs [EPILOGUE_N][TILE_K]
    unsigned char* const barriers = epilogue_stages + CONSUMERS * EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES;
    PipelineTma<STAGES>& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(barriers);
    WindowPipeline& window_pipeline = *reinterpret_cast<WindowPipeline*>(&pipeline + 1);
    auto& mainloop_order = *reinterpret_cast<OrderedSequenceBarrier<>*>(reinterpret_cast<Barrier*>(&pipeline + 1) + 2 * WINDOWS);
    using Residuals = Barrier[CONSUMERS][EPILOGUE_STAGES];  // have come
    Residuals& residuals = *reinterpret_cast<Residuals*>(&mainloop_order + (PINGPONG ? 1 : 0));

    const int warp = canonical_warp_index(), group = warp / 4;
    const int tiles = tiles_of(n);
    if (group == 0) {
        if (threadIdx.x == 0) {
            pipeline.init(RELEASES);
            if constexpr (WINDOWED) window_pipeline.init(RELEASES);
            if constexpr (PINGPONG) mainloop_order.init();
            if constexpr (EPILOGUE::HAS_RESIDUAL) {
                for (int i = 0; i < CONSUMERS * EPILOGUE_STAGES; ++i) barrier_init(&residuals[0][0] + i, 1);
            }
            barrier_init_fence();
        }
        __syncwarp();
        arrive_threads<THREADS>(CONSUMERS + 1);  // and the first loads are under way before the others come
        begin_dependent();
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce<1, 24>(stages, pipeline, x_map, w_map, tiles, windows, &window_pipeline);
        return;
    }
    clear_behind_windows(windows);
    sync_threads<THREADS>(CONSUMERS + 1);  // for the barriers
    begin_dependent();
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    const int consumer = group - 1, thread = static_cast<int>(threadIdx.x) % 128, lane = static_cast<int>(threadIdx.x) % 32;
    // What is this warpgroup's of a tile.
    const int group_m = !PINGPONG && TILE_M > 64 ? consumer * GROUP_M : 0;
    const int group_n = GROUP_N < TILE_N ? consumer * GROUP_N : 0;
    const unsigned long long w_operand = wgmma_descriptor(stages + group_m * OPERAND_ROW_BYTES);
    const unsigned long long x_operand = pixels_operand(WINDOWED ? windows : stages + TILE_M * OPERAND_ROW_BYTES, group_n);
    unsigned char* const outputs = epilogue_stages + consumer * (EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    if (thread == 0) prefetch_tma_descriptor(&y_map);

    PipelineState<STAGES> state;
    [[maybe_unused]] PipelineState<EPILOGUE_STAGES> residual;
    [[maybe_unused]] int epilogue_stage = 0;
    Window window;
    int order_phase = consumer ^ 1;  // the first warpgroup's first turn is at once
    using Scheduler = PersistentTileScheduler<>;
    if (PINGPONG && consumer == 1) {
        state.advance<K_TILES>();
        window.skip_tile();
    }
    const int first_tile = Scheduler::first() + (PINGPONG ? consumer * Scheduler::step() : 0);
    for (int index = first_tile; index < tiles; index += (PINGPONG ? 2 : 1) * Scheduler::step()) {
        const int k = index % TILES_M * TILE_M + group_m;
        const Place at = place_of(index, group_n);
        float biases[BLOCKS_M][2] = {};
        load_biases<EPILOGUE, K>(biases, bias, k, warp, lane);
        float d[BLOCKS_M][GROUP_N / 8][4];
        if constexpr (PINGPONG) {
            mainloop_order.wait(consumer, order_phase);
            order_phase ^= 1;
        }
        window.begin_tile();
        const int last = collective_mma<Mma>(d, pipeline, state, w_operand, x_operand, 0, K_TILES, lane, window_pipeline, window);
        if (PINGPONG && lane == 0) mainloop_order.arrive(consumer);
        wgmma_wait(d);
        Mma::release_tile(pipeline, last, lane, window_pipeline, window);
        if constexpr (PINGPONG) {
            state.advance<K_TILES>();
            window.skip_tile();
        }
        Sums* const place = workspace + (static_cast<long long>(index / TILES_M) * (TILE_N / GROUP_N) + group_n / GROUP_N) * K;
        EpilogueStatistics::store(d, biases, outputs, epilogue_stage, y_map, k, at, consumer, warp, lane,
                                  TileStatistics<EPILOGUE_N>{at.column, at.row - Boxes::rows(group_n), group_n}, place);
    }
    if (thread == 0) bulk_store_wait_read<0>();
}
