// conv2d n3 c3 21x30 k40 7x7 stride 2 pad 3 f16 nhwc bias_relu
// few_channels_sm90 column_tiles=1 window_rows=4 filters=registers stages=2 epilogue_stages=1 register_prefetch=8 producers=1 channels=all

// D[k, q] = sum over t, r, s, c of W[k, trsc] * X[trsc, q], for each row of outputs, or OUTPUT_ROWS of eight columns: M = K output channels,
// N = OUTPUT_ROWS * TILE_Q pixels, depth = T*R*S*4, the channels filled up to four.
// A = w [K, T, R, S, C], in registers or shared memory.  B = x [N, D, H, W, C], an expanded window in shared memory.
// Tile WINDOW_ROWS x TILE_Q of all output channels; tile space N * O * ceil(P / WINDOW_ROWS) * ceil(Q / TILE_Q).
// Parts: pipeline -> _pipeline, staged outputs -> _epilogue_tma_*.
//
//   x         [N, D, H, W, C]  input, up to four channels; of two dimensions D = T = O = 1
//   w         [K, T, R, S, C]  filters
//   bias      [K]              read where EPILOGUE has one
//   y         [N, O, P, Q, K]  output
//   n         images N, any number
//
// A block stays and takes tiles gridDim.x apart. A tile is WINDOW_ROWS rows of TILE_Q columns of an image; its window, the rows of x that it
// needs, lies in shared memory as MMAs read it, in chunks of 16 bytes: two columns of four channels.
//
//   pixel q's part of a row is 4 chunks, the first of which lies 16 bytes behind that of pixel q - 1:
//   so that MMAs read what overlaps out of one place, and im2col is addresses alone. Columns that chunks hold besides the filter's have
//   weights of zero, but make outputs NaN where they are infinite.
//
//   producers  one or two warpgroups, which take tiles in turn: load four columns of x a thread, add channels and padding, and store chunks
//   consumers  take rows of outputs in turn: while one multiplies, the other finishes its accumulators, and stores them by TMA

#include "_words_f16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_epilogue_tma_16.cuh"

#include "_epilogue_sm90.cuh"

// Problem
constexpr int C = 3, D = 1, H = 21, W = 30;
constexpr int K = 40, FILTER_D = 1, R = 7, S = 7;
constexpr int O = 1, P = 11;
constexpr int STRIDE_D = 1, STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_D = 0, PAD_H = 3;
constexpr int DILATION_D = 1, DILATION_H = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_Q = 16, WINDOW_ROWS = 4, OUTPUT_ROWS = 1, TILE_N = TILE_Q * OUTPUT_ROWS;
constexpr int STAGES = 2, EPILOGUE_STAGES = 1;
constexpr int PREFETCH = 8;

// Derived
constexpr int CONSUMERS = 2, PRODUCERS = 1, THREADS = 128 * (CONSUMERS + PRODUCERS);  // warpgroups
constexpr int COLUMN_TILES = 1, ROW_TILES = 3;
constexpr int CHANNEL_TILES = 1, CHANNEL_BLOCKS = 1;       // 64 output channels each: of a block; blocks that share them
constexpr int LEFT = 4, SHIFT = 1;                               // columns of a window before those of x, before the first tap's
constexpr int ROW_STEPS = 2, STEPS = FILTER_D * R * ROW_STEPS;                // MMAs in depth of a row of the filter
constexpr int PLANES = 1, PITCH = 19;                           // chunks of a plane of a window's row
constexpr int WINDOW_H = 13, WINDOW_BYTES = 3968;
constexpr int LEFT_GROUPS = 1, ROW_GROUPS = 10;       // of four columns, of the padding and in all
constexpr int LOAD = 2, LOADS = 6;                               // elements of a load, loads of a group
constexpr bool REGISTER_FILTERS = true;
constexpr int FILTER_BYTES = STEPS * 2048;                                    // of 64 output channels
constexpr int CHUNK_COLUMNS = 2, CHUNK_STEP = 2;             // of a chunk, from one chunk to the next
using EpilogueTma = CollectiveEpilogue<T, EPILOGUE, Boxes4d, 1, 1, TILE_N, EPILOGUE_STAGES>;
using Scheduler = PersistentTileScheduler<CHANNEL_BLOCKS>;

struct Barriers {
    PipelineAsync<STAGES> pipeline;
    OrderedSequenceBarrier<> mainloop_order;
};

// d = w [64 x 16] * x [16 x TILE_N] (+ d), x in shared memory.
__device__ __forceinline__ void mma(float (&d)[2][4], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %13, 0; "
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7"
        "}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3])
        : "r"(wgmma_word(a[0])), "r"(wgmma_word(a[1])), "r"(wgmma_word(a[2])), "r"(wgmma_word(a[3])), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_f16_shared(d, a, b, accumulate);
#endif
}

// Where a tile begins.
struct Tile {
    int image, row, column;  // an image of y: a frame, where there are several
    __device__ explicit Tile(int index) {
        column = index % COLUMN_TILES * TILE_Q;
        row = index / COLUMN_TILES % ROW_TILES * WINDOW_ROWS;
        image = index / COLUMN_TILES / ROW_TILES;
    }
};

// An element as MMAs take it.
__device__ __forceinline__ T operand(T value) { return value; }

// Four neighbouring columns of a row of x.
struct Group {
    AlignedArray<T, LOAD> loads[LOADS];

    __device__ __forceinline__ void load(const T* __restrict__ row, int column, bool inside) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int element = column * C + i * LOAD;
            loads[i] = {};
            if (inside && element >= 0 && element < W * C) loads[i] = *reinterpret_cast<const AlignedArray<T, LOAD>*>(row + element);
        }
    }
    // Columns of four channels, from the i-th on.
    __device__ __forceinline__ AlignedArray<T, 4 * CHUNK_COLUMNS> chunk(int i) const {
        AlignedArray<T, 4 * CHUNK_COLUMNS> columns = {};
#pragma unroll
        for (int j = 0; j < CHUNK_COLUMNS * C; ++j) columns.at[j / C * 4 + j % C] = operand(loads[(i * C + j) / LOAD].at[(i * C + j) % LOAD]);
        return columns;
    }
};

// Expands the windows of the block's tiles, the producers in turn.
__device__ __forceinline__ void produce(unsigned char* windows, PipelineAsync<STAGES>& pipeline, const T* __restrict__ x, int tiles) {
    constexpr int GROUPS = FILTER_D * WINDOW_H * ROW_GROUPS;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    PipelineState<STAGES> state;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step(), ++state) {
        const Tile tile(index);
        const T* const image = x + static_cast<long long>(tile.image / O) * (D * H * W * C);
        const int front = tile.image % O * STRIDE_D - PAD_D, top = tile.row * STRIDE_H - PAD_H, first_column = tile.column * STRIDE_W - 4 * LEFT_GROUPS;
        unsigned char* const window = windows + state.index * WINDOW_BYTES;
#pragma unroll 1
        for (int first = 0; first < GROUPS; first += 128 * PREFETCH) {
            Group groups[PREFETCH];
#pragma unroll
            for (int i = 0; i < PREFETCH; ++i) {
                const int group = first + i * 128 + thread, line = group / ROW_GROUPS;
                const int tap = FILTER_D == 1 ? 0 : line / WINDOW_H, frame = front + tap * DILATION_D, row = top + line - tap * WINDOW_H;
                groups[i].load(image + (static_cast<long long>(frame) * H + row) * (W * C), first_column + group % ROW_GROUPS * 4,
                               group < GROUPS && frame >= 0 && frame < D && row >= 0 && row < H);
            }
            if (first == 0) pipeline.producer_acquire(state);
#pragma unroll
            for (int i = 0; i < PREFETCH; ++i) {
                const int group = first + i * 128 + thread;
                const int column = group % ROW_GROUPS * 4 + (LEFT - 4 * LEFT_GROUPS);  // of the window
                unsigned char* const row = window + group / ROW_GROUPS * (PLANES * PITCH * 16);
#pragma unroll
                for (int j = 0; j < 4; j += CHUNK_STEP) {
                    const int chunk = (column + j) / CHUNK_STEP;
                    if (group < GROUPS && column + j >= 0 && chunk < PLANES * PITCH) {
                        store_operand(row + (chunk % PLANES * PITCH + chunk / PLANES) * 16, groups[i].chunk(j));
                    }
                }
            }
        }
        fence_bulk();
        __syncwarp();
        if (thread % 32 == 0) pipeline.producer_commit(state.index);
    }
}

// The filters' elements as MMAs read them, by the consumers: [64 output channels][step][chunk][output channel][column][channel of four].
__device__ __forceinline__ void arrange_filters(unsigned char* filters, const T* __restrict__ w, int first_k, int thread) {
    constexpr int N = 4 / static_cast<int>(sizeof(T));  // elements of a word
#pragma unroll 8
    for (int i = thread; i < CHANNEL_TILES * FILTER_BYTES / 4; i += 128 * CONSUMERS) {
        const int word = i % 4, chunk = i / 4 % 2, row = i / 8 % 64, step = i / 512 % STEPS, tile = i / 512 / STEPS;
        const int tr = step / ROW_STEPS, s = (step % ROW_STEPS * 2 + chunk) * CHUNK_COLUMNS + word / (4 / N) - SHIFT, c = word % (4 / N) * N, k = first_k + tile * 64 + row;
        const T* const from = w + ((k * (FILTER_D * R) + tr) * S + s) * C + c;
        const bool inside = k < K && s >= 0 && s < S;
        AlignedArray<T, N> elements = {};
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (inside && c + j < C) elements.at[j] = operand(from[j]);
        }
        store_operand(filters + tile * FILTER_BYTES + step * 2048 + chunk * 1024 + row * 16 + word * 4, elements);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_few_channels_sm90(const T* __restrict__ x, const T* __restrict__ w, const __grid_constant__ TensorMap y_map, const T* __restrict__ bias,
                         int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const epilogue_stages = smem;  // [consumer][epilogue stage][box] outputs [TILE_N][EpilogueTma::BOX_CHANNELS]
    unsigned char* const windows = epilogue_stages + CONSUMERS * EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES;  // [stage] chunks [FILTER_D][WINDOW_H][PLANES][PITCH]
    unsigned char* const filters = windows + STAGES * WINDOW_BYTES;                                       // [64 output channels] [FILTER_BYTES]
    Barriers& barriers = *reinterpret_cast<Barriers*>(filters + CHANNEL_TILES * FILTER_BYTES);
    PipelineAsync<STAGES>& pipeline = barriers.pipeline;

    const int warp = canonical_warp_index();
    const int group = warp / 4;
    const int tiles = n * (O * ROW_TILES * COLUMN_TILES);
    if (threadIdx.x == 0) {
        pipeline.init(4, 4 * CONSUMERS);
        barriers.mainloop_order.init();
        barrier_init_fence();
    }
    __syncthreads();
    if (PRODUCERS == 1 ? group == 0 : group < PRODUCERS) {
        warpgroup_reg_dealloc<104>();
        produce(windows, pipeline, x, tiles);
        return;
    }
    warpgroup_reg_alloc<200>();
    const int consumer = group - PRODUCERS, thread = static_cast<int>(threadIdx.x) % 128, lane = static_cast<int>(threadIdx.x) % 32;
    if (thread == 0) prefetch_tma_descriptor(&y_map);
    const int first_k = CHANNEL_BLOCKS > 1 ? static_cast<int>(blockIdx.x) % CHANNEL_BLOCKS * 64 : 0;
    arrange_filters(filters, w, first_k, static_cast<int>(threadIdx.x) - 128 * PRODUCERS);
    fence_bulk();
    sync_threads<128 * CONSUMERS>(1 + CONSUMERS);

    const unsigned long long x_operand = wgmma_operand(windows, 0, 16, 128);
    unsigned char* const outputs = epilogue_stages + consumer * (EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    int epilogue_stage = 0;

    [[maybe_unused]] const unsigned long long w_operand = wgmma_operand(filters, 0, 1024, 128);
    unsigned a[STEPS][4];  // filters of this warp's 16 output channels, where MMAs read them in registers
    float biases[1][2] = {};
    const auto load_channels = [&](int tile) {
        const unsigned char* const from = filters + tile * FILTER_BYTES + warp % 4 * 256 + lane * 4;
#pragma unroll
        for (int i = 0; i < (REGISTER_FILTERS ? STEPS * 4 : 0); ++i) {
            a[i / 4][i % 4] = *reinterpret_cast<const unsigned*>(from + i / 4 * 2048 + i / 2 % 2 * 1024 + i % 2 * 128);
        }
        load_biases<EPILOGUE, K>(biases, bias, first_k + tile * 64, warp, lane);
    };
    if (CHANNEL_TILES == 1) load_channels(0);

    PipelineState<STAGES> state;
    int turn = 0;                    // of which warpgroup it is to multiply
    int order_phase = consumer ^ 1;  // the first warpgroup's first turn is at once
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step(), ++state) {
        const Tile tile(index);
        const int rows = (min(WINDOW_ROWS, P - tile.row) + OUTPUT_ROWS - 1) / OUTPUT_ROWS;  // of MMAs
        pipeline.consumer_wait(state);
#pragma unroll 1
        for (int channel_tile = 0; channel_tile < CHANNEL_TILES; ++channel_tile, turn = (turn + rows) & 1) {
            if (CHANNEL_TILES > 1) load_channels(channel_tile);
#pragma unroll 1
            for (int row = turn ^ consumer; row < rows; row += CONSUMERS) {
                const unsigned long long b = x_operand + (state.index * (WINDOW_BYTES / DESCRIPTOR_UNIT) + row * (OUTPUT_ROWS * STRIDE_H * PLANES * PITCH));
                float d[1][TILE_N / 8][4];
                barriers.mainloop_order.wait(consumer, order_phase);
                order_phase ^= 1;
                wgmma_begin(d);
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    constexpr int CHUNK = 2;  // of a step in a row
                    const int chunk = step % ROW_STEPS * CHUNK;
                    const int t = step / ROW_STEPS / R, r = step / ROW_STEPS % R;
                    const int at = (t * WINDOW_H + r * DILATION_H) * (PLANES * PITCH) + chunk % PLANES * PITCH + chunk / PLANES;
                    mma(d[0], a[step], b + at, step > 0);
                }
                wgmma_commit();
                if (lane == 0) barriers.mainloop_order.arrive(consumer);
                wgmma_wait(d);

                const bool staged = first_k + channel_tile * 64 + warp % 4 * 16 < K;
                EpilogueTma::store(d, biases, outputs, epilogue_stage, y_map, first_k + channel_tile * 64, tile.column, tile.row + row * OUTPUT_ROWS, tile.image, consumer,
                                   warp, lane, staged);
            }
        }
        __syncwarp();  // where the warpgroup had no row of the tile
        if (lane == 0) pipeline.consumer_release(state.index);
    }
    if (thread == 0) bulk_store_wait_read<0>();
}
