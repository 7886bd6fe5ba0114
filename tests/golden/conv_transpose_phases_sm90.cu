// conv_transpose n 2 c 40 h 5 w 6 k 24 r 3 s 4 stride_h 2 stride_w 2 padding_h 1 padding_w 1 output_padding_h 1 f16 nhwc bias_add_relu
// conv_transpose_phases_sm90 tile_m=64 tile_n=64 schedule=pingpong joined=none window_rows=0 epilogue_subtiles=2

// D[phase k, nopq] = sum over taps, c of W[phase k, taps c] * X[taps c, nopq]: M = K output channels of each output phase, N = outputs of a phase,
// depth = the taps of the phases that a tile joins, times C.
// A = packed_w, depth-major, TMA tile.  B = x [N, D, H, W, C], depth-major, TMA im2col of one tap, or a TMA window of x for all taps.
// Tile TILE_M x TILE_N; tile space ceil(phases * K / TILE_M) * ceil(outputs of a phase / TILE_N).
// Parts: mainloop -> _mainloop_sm90, tiles -> _phase_pixels or _phase_windows, epilogue -> _epilogue_tma_16 or _f32, phases -> _phase.
//
//   x         [N, D, H, W, C]               input; of fewer dimensions the first have size 1
//   packed_w  [part][joined phase][K][TAPS][C]  filters; zero for a tap that a phase lacks
//   bias      [K]                           read where EPILOGUE has one
//   z         [N, O, P, Q, K]               residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]               output
//   n         images N, any number
//
// A phase's outputs are STRIDE apart in y, so that threads store them, 16 bytes at a time, out of the rows that an epilogue stage has. All
// phases go through the same pixels of x, from the least that any of them needs; a tap is an offset in the box. Phases of joined axes are
// rows of the same part of D: x is loaded once for all of them, and multiplied by zeros for a tap that a phase lacks.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K channels of one tap as a stage, of filters and pixels, or of filters
//              beside windows of x that serve all taps
//   consumers  multiply stages out of shared memory, finish the accumulators and store them; with PINGPONG in turn

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_accumulators.cuh"

#include "_ptx_dependent.cuh"

#include "_epilogue_tma_16.cuh"

// Problem
constexpr int C = 40, D = 1, H = 5, W = 6;
constexpr int K = 24, FILTER_D = 1, R = 3, S = 4;
constexpr int O = 1, P = 10, Q = 12;
constexpr int STRIDE_D = 1, STRIDE_H = 2, STRIDE_W = 2;
constexpr int PADDING_D = 0, PADDING_H = 1, PADDING_W = 1;
constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;
constexpr int FILTER_C = 40, FILTER_K = 24;  // channels of a group; other groups' are multiplied by zeros
[[maybe_unused]] constexpr bool DEEP = false, FLAT = false;  // of three dimensions, of one
using EPILOGUE = Epilogue<true, true, relu>;

// Parameters
constexpr int TILE_M = 64, TILE_N = 64, TILE_K = 64;
constexpr int STAGES = 8;
constexpr bool PINGPONG = true;

// Derived
constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int GROUP_M = 64, GROUP_N = 64;                 // what one computes of a tile
constexpr int BLOCKS_M = GROUP_M / 64;                                    // MMAs side by side
constexpr int EPILOGUE_N = 32, EPILOGUE_STAGES = 2;  // outputs staged at once
constexpr int PHASE_O = 1, PHASE_P = 5, PHASE_Q = 6;  // most outputs of a phase
constexpr int TAPS_D = 1, TAPS_H = 2, TAPS_W = 2, TAPS = TAPS_D * TAPS_H * TAPS_W;  // most of a part
constexpr int LOW_D = 0, LOW_H = 0, LOW_W = -1;  // the least input of output 0 of a phase
constexpr bool JOINED_D = false, JOINED_H = JOINED_D, JOINED_W = false;
constexpr int JOINED_PHASES = 1, JOINED_K = 24;
constexpr bool UNTAPPED = false;  // there are phases without taps
constexpr int PARTS = 4, PART_M = 64, TILES_M = 4;
constexpr int CHANNEL_TILES = 1;
constexpr int ROW_BYTES = 128;  // of a stage
constexpr int K_BLOCKS = 3;  // MMAs in depth of a stage: none of padding alone
constexpr int STAGE_BYTES = 16384;
constexpr int RELEASES = 4 * (PINGPONG ? 1 : CONSUMERS);  // of a stage, by warps
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

#include "_phase.cuh"

// d = w [64 x 16] * x [16 x GROUP_N] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[8][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15, "
        "%16, %17, %18, %19, "
        "%20, %21, %22, %23, "
        "%24, %25, %26, %27, "
        "%28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;}"
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
    wgmma_f16_shared(d, a, b, accumulate);
#endif
}

#include "_mainloop_sm90.cuh"

// The taps of a part on an axis: for output 0 they meet input() apart.
template <class Axis, bool JOINED, int TAPS, int LOW>
struct PartTaps {
    static constexpr int INPUT_STEP = JOINED ? 1 : Axis::INPUT_STEP;

    int count, first_input;

    __device__ __forceinline__ explicit PartTaps(const Axis& axis)
        : count(JOINED ? TAPS : axis.taps), first_input(JOINED ? LOW + TAPS - 1 : axis.first_input) {}
    __device__ __forceinline__ int input(int m) const { return first_input - m * INPUT_STEP; }
};

// A part of the rows of D: phases that are joined, by one of them.
struct Part {
    PartTaps<decltype(Phase::d), JOINED_D, TAPS_D, LOW_D> d;
    PartTaps<decltype(Phase::h), JOINED_H, TAPS_H, LOW_H> h;
    PartTaps<decltype(Phase::w), JOINED_W, TAPS_W, LOW_W> w;

    __device__ __forceinline__ explicit Part(const Phase& phase) : d(phase.d), h(phase.h), w(phase.w) {}
    __device__ __forceinline__ int taps() const { return d.count * h.count * w.count; }
};

// Joined phases are the fastest of a phase's number.
__device__ __forceinline__ Phase phase_of(int part, int joined) { return Phase(part * JOINED_PHASES + joined); }

extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= PARTS * JOINED_K * TAPS * C) return;
    const int c = i % C, tap = i / C % TAPS, row = i / C / TAPS % JOINED_K;
    const Phase phase = phase_of(i / C / TAPS / JOINED_K, row / K);
    const Part part(phase);
    T filter = from_float<T>(0.0f);
    if (tap < part.taps()) {
        // The filter's tap under which the part's input meets the phase's output.
        const int t = phase.d.tap_at(part.d.input(tap / (part.h.count * part.w.count)));
        const int r = phase.h.tap_at(part.h.input(tap / part.w.count % part.h.count));
        const int s = phase.w.tap_at(part.w.input(tap % part.w.count)), k = row % K;
        const bool there = t >= 0 && t < FILTER_D && r >= 0 && r < R && s >= 0 && s < S && c / FILTER_C == k / FILTER_K;
        if (there) filter = w[(c * (FILTER_D * R * S) + (t * R + r) * S + s) * FILTER_K + k % FILTER_K];
    }
    packed_w[i] = filter;
}

// A tile: its first row and its first output. Where parts have different numbers of taps, a block's tiles shall not all be of the same: so the
// rows begin elsewhere with each TILE_N outputs.
struct Tile {
    int m, first;

    __device__ __forceinline__ explicit Tile(int index) : m((index + index / TILES_M) % TILES_M * TILE_M), first(index / TILES_M * TILE_N) {}
    __device__ __forceinline__ int part() const { return m / PART_M; }
    __device__ __forceinline__ int k_tiles() const { return Part(phase_of(part(), 0)).taps() * CHANNEL_TILES; }
};

#include "_phase_pixels.cuh"

// Rows of 128 bytes of an epilogue stage: of an output the channels of a box, 64 or 32, swizzled.
constexpr int BOX_CHANNELS = OPERAND_ROW_BYTES / static_cast<int>(sizeof(T)), EPILOGUE_BOXES = 64 / BOX_CHANNELS;
constexpr int EPILOGUE_STAGE_BYTES = EPILOGUE_BOXES * EPILOGUE_N * OPERAND_ROW_BYTES;

// Calls copy(staged, at) of each 16 bytes of an epilogue stage, by a warpgroup: where they are staged, and which element of y, or of z, is
// their first. The stage has 64 rows of D from m on, EPILOGUE_N outputs from `first` on.
template <class Copy>
__device__ __forceinline__ void for_each_chunk(unsigned char* stage, int m, int first, int pixels, const Copy& copy) {
    constexpr int CHUNK_K = 16 / static_cast<int>(sizeof(T)), ROW_CHUNKS = OPERAND_ROW_BYTES / 16;
    const int thread = static_cast<int>(threadIdx.x) % 128, chunk = thread % ROW_CHUNKS;
#pragma unroll
    for (int box = 0; box < EPILOGUE_BOXES; ++box) {
        const int row = m + box * BOX_CHANNELS + chunk * CHUNK_K, in_part = row % PART_M, k = in_part % K;
        if (row >= PARTS * PART_M || in_part >= JOINED_K) continue;
        const Phase phase = phase_of(row / PART_M, in_part / K);
        for (int i = thread / ROW_CHUNKS; i < EPILOGUE_N; i += 128 / ROW_CHUNKS) {
            const Output output(first + i, pixels, phase);
            if (!output.there) continue;
            copy(stage + (box * EPILOGUE_N + i) * OPERAND_ROW_BYTES + (chunk ^ i % 8) * 16, output.pixel(phase) * K + k);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv_transpose_phases_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const T* __restrict__ bias,
                           const T* __restrict__ z, T* __restrict__ y, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const stages = smem;  // [stage] filters [TILE_M][TILE_K], then pixels [TILE_N][TILE_K]
    unsigned char* const epilogue_stages = stages + STAGES * STAGE_BYTES;  // [consumer][epilogue stage][box] outputs [EPILOGUE_N]
    unsigned char* const barriers = epilogue_stages + CONSUMERS * EPILOGUE_STAGES * EPILOGUE_STAGE_BYTES;
    PipelineTma<STAGES>& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(barriers);
    auto& mainloop_order = *reinterpret_cast<OrderedSequenceBarrier<>*>(&pipeline + 1);
    const int warp = canonical_warp_index(), group = warp / 4;
    [[maybe_unused]] const int pixels = n * (PHASE_O * PHASE_P * PHASE_Q);
    const int tiles = (pixels + TILE_N - 1) / TILE_N * TILES_M;
    if (group == 0) {
        if (threadIdx.x == 0) {
            pipeline.init(RELEASES);
            if constexpr (PINGPONG) mainloop_order.init();
            barrier_init_fence();
        }
        __syncwarp();
        arrive_threads<THREADS>(CONSUMERS + 1);  // and the first loads are under way before the others come
        begin_dependent();
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce(stages, pipeline, x_map, w_map, tiles);
        return;
    }
    sync_threads<THREADS>(CONSUMERS + 1);  // for the barriers
    begin_dependent();
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    const int consumer = group - 1, lane = static_cast<int>(threadIdx.x) % 32;
    // What is this warpgroup's of a tile.
    const int group_m = !PINGPONG && TILE_M > 64 ? consumer * GROUP_M : 0;
    const int group_n = GROUP_N < TILE_N ? consumer * GROUP_N : 0;
    const unsigned long long w_operand = wgmma_descriptor<ROW_BYTES>(stages + group_m * ROW_BYTES);
    const unsigned long long x_operand = wgmma_descriptor<ROW_BYTES>(stages + (TILE_M + group_n) * ROW_BYTES);
    unsigned char* const outputs = epilogue_stages + consumer * (EPILOGUE_STAGES * EPILOGUE_STAGE_BYTES);

    using Mma = StagedMma<STAGE_BYTES, K_BLOCKS, false, false, ROW_BYTES>;
    int epilogue_stage = 0, k_tile = 0;  // of all the block's tiles
    int order_phase = consumer ^ 1;      // the first warpgroup's first turn is at once
    using Scheduler = PersistentTileScheduler<>;
    int owner = 0;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step(), owner ^= 1) {
        const Tile tile(index);
        const int k_tiles = tile.k_tiles(), m = tile.m + group_m, first = tile.first + group_n;
        PipelineState<STAGES> state = PipelineState<STAGES>::of(k_tile);
        k_tile += k_tiles;
        if (PINGPONG && owner != consumer) continue;
        float biases[BLOCKS_M][2] = {};
        if constexpr (EPILOGUE::HAS_BIAS) {
#pragma unroll
            for (int i = 0; i < 2 * BLOCKS_M; ++i) {
                const int row = m + i / 2 * 64 + warp % 4 * 16 + i % 2 * 8 + lane / 4;
                biases[i / 2][i % 2] = to_float(bias[row % PART_M % K]);
            }
        }
        float d[BLOCKS_M][GROUP_N / 8][4];
        if constexpr (PINGPONG) {
            mainloop_order.wait(consumer, order_phase);
            order_phase ^= 1;
        }
        if constexpr (UNTAPPED) clear(d);
        const int last = collective_mma<Mma>(d, pipeline, state, w_operand, x_operand, 0, k_tiles, lane);
        if (PINGPONG && lane == 0) mainloop_order.arrive(consumer);
        wgmma_wait(d);
        if (!UNTAPPED || k_tiles > 0) Mma::release_tile(pipeline, last, lane);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < GROUP_N / EPILOGUE_N; ++subtile) {
                unsigned char* const staged = outputs + epilogue_stage * EPILOGUE_STAGE_BYTES;
                const int block_m = m + i * 64, block_first = first + subtile * EPILOGUE_N;
                using Vector = AlignedArray<unsigned, 4>;
                // What was stored from this stage before; of two stages the barrier in between says so.
                if constexpr (EPILOGUE_STAGES == 1) sync_threads<128>(1 + consumer);
                for_each_chunk(staged, block_m, block_first, pixels, [z](unsigned char* to, long long at) {
                    *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(z + at);
                });
                sync_threads<128>(1 + consumer);
                stage_outputs<T, EPILOGUE, EPILOGUE_N>(staged, d[i], subtile * (EPILOGUE_N / 8), biases[i], warp % 4, lane);
                sync_threads<128>(1 + consumer);
                for_each_chunk(staged, block_m, block_first, pixels, [y](const unsigned char* from, long long at) {
                    *reinterpret_cast<Vector*>(y + at) = *reinterpret_cast<const Vector*>(from);
                });
                epilogue_stage ^= EPILOGUE_STAGES - 1;
            }
        }
    }
}
