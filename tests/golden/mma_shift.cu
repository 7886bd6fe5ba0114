// conv2d n2 c3 9x11 k5 3x3 f32 nchw
// mma_shift precision=tf32 mma_p=4 image_tiles=1 filters=shared consumer_warpgroups=2 stages=2 epilogue_stages=2 producer_warps=3 producer_pixels=4

// D[k, npq] = sum over c, r, s of W[k, crs] * X[crs, npq]: M = K output channels of MMA_P rows, N = pixels of an image, depth = C*R*S.
// A = packed_w.  B = x [N, C, H, W], chunks of channels in shared memory, where a tap is an offset.  Tile an image; tile space N.
//
// Convolution as matrix products of warpgroups (wgmma): [filters x taps] * [taps x pixels], MMA_P output rows at once.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as MMAs take them: [channel block][filter column][lag][output channel][VECTOR], then lags of zeros;
//             with several parts [channel block][filter column][ZEROS rows, then filter row][output channel][VECTOR], then zeros
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// Inputs lie in shared memory in chunks of 16 bytes, CHANNELS channels by FOLD rows of a pixel, row by row: the pixels that all
// outputs need under one tap follow each other, and from tap to tap all of them move on alike. So a tap is an address. Columns of a
// MMA are neighbours through all rows; those that hang over the end of a row are computed and dropped.
// Rows of an MMA are output channels of MMA_P output rows; an output row takes a filter's row one later than the next, so that filters of
// all rows lie, lag by lag, once. Of every eight rows USED are output channels; the others are zeros where shared memory has room for them.
// Where these output channels are more than 64, PARTS MMAs take 64 each, and only the rows of inputs that their own output rows need.
// A block takes whole images, gridDim.x apart, SUBTILES subtiles each. Consumer warpgroups take subtiles in turn, and a consumer warpgroup
// starts its MMAs when the one before has started all of its own: they run one after another without a gap while other consumer warpgroups
// stage outputs.
//
//   consumer  accumulators of a subtile: rows of an MMA lane / 4 and lane / 4 + 8 of a warp's 16, columns 2 (lane % 4) and the next of a tile
//   producer  a warp copies outputs, PRODUCER_WARPS transform the inputs' layout

#include "_words_f32.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_barrier.cuh"

#include "_pipeline.cuh"

#include "_images.cuh"

#include "_ptx_fetch.cuh"

#include "_ptx_wgmma.cuh"

// Problem
constexpr int C = 3, H = 9, W = 11;
constexpr int K = 5, R = 3, S = 3;
constexpr int P = 7, Q = 9;
using EPILOGUE = Epilogue<false, false, identity>;

// Parameters
constexpr int MMA_P = 4;  // of outputs
constexpr int IMAGE_TILES = 1, SUBTILES = 1;  // of an image
constexpr int CONSUMER_WARPGROUPS = 2;
constexpr int STAGES = 2;  // pipeline stages: inputs in shared memory
constexpr int EPILOGUE_STAGES = 2;  // epilogue stages
constexpr int PRODUCER_WARPS = 3, PRODUCER_PIXELS = 4;  // warps; pixels of a lane

// Derived
constexpr int THREADS = 384;
constexpr int VECTOR = 4;  // elements of a chunk
constexpr int FOLD = 1, CHANNELS = 4;  // rows and channels of a chunk
constexpr int CHANNEL_BLOCKS = 1, AT_ONCE = 1;  // of CHANNELS; those loaded together
constexpr int PHASES = 4;  // planes of a block of channels: chunks' rows by what they leave divided by PHASES
constexpr int CHUNK_ROWS = 9;  // rows of chunks that are put in order
constexpr int TAPS_H = 6;  // rows of chunks that MMA_P output rows need
constexpr int PITCH = 11, BLOCK = 9 * PITCH;  // chunks from row to row, of a block of channels
constexpr int COLUMNS = 24, TILES = 3;  // of an MMA; of 8 columns
constexpr int EIGHTS = 2;  // times eight rows of an MMA are an output row
constexpr int USED = 3, STORED = 8;  // of every eight rows of an MMA
constexpr int LAG = EIGHTS * STORED;  // rows of a lag
constexpr int PARTS = 1;  // MMAs side by side, each of 64 output channels
constexpr int ZEROS = PARTS > 1 ? 56 : 0;  // rows of zeros before a column of filters
constexpr int FILTER = PARTS > 1 ? R * LAG + ZEROS : TAPS_H * FOLD * LAG;  // rows from column to column of filters
constexpr int FILTER_ROWS = 336;  // of 16 bytes
constexpr int STAGE = 103;  // chunks
constexpr int EPILOGUE_STAGE = 320;  // elements
constexpr int LACK = 3;  // rows of chunks that some planes lack
constexpr int PLANE_ROWS = (9 + LACK) / PHASES;
constexpr int PAD_H = 0, PAD_W = 0;
constexpr bool ALL_USED = USED * EIGHTS <= K;  // rows of MMAs that may be output channels
constexpr bool WHOLE = false;  // images of outputs begin on 16 bytes
constexpr bool ORDERED = CONSUMER_WARPGROUPS > 1;  // consumer warpgroups start their MMAs in turn
constexpr bool SHARED_FILTERS = true;  // else in registers
constexpr int BARRIER_BYTES = 128;
constexpr int PRODUCER_REGISTERS = 64, CONSUMER_REGISTERS = 216;

// The output channel of the row of an output row's used ones: `step` output channels from row to row, then those between. There are K or a
// few less than K output channels.
__host__ __device__ constexpr int k_of(int row, int step) { return row % (K / step) * step + row / (K / step); }

// How often the lanes of four warps that stage a column meet in the busiest bank.
constexpr int conflicts(int step) {
    int accumulator = 0;
    for (int eight = 0; eight < EIGHTS; ++eight) {
        int most = 0, met[32] = {};
        for (int i = 0; i < 4 * USED && (ALL_USED || eight * USED + i / 4 < K); ++i) {
            const int at = k_of(eight * USED + i / 4, step) * P * Q + i % 4 * 2;
            const int bank = at * static_cast<int>(sizeof(T)) / 4 % 32;
            if (++met[bank] > most) most = met[bank];
        }
        accumulator += most;
    }
    return accumulator;
}

constexpr int best_step() {
    int best = 1;
    for (int step = 2; step < K; ++step) {
        if (K % step == 0 && conflicts(step) < conflicts(best)) best = step;
    }
    return best;
}

constexpr int K_STEP = best_step();

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Chunk* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= FILTER_ROWS) return;
    const int eight = (PARTS == 1 ? i : i % FILTER - ZEROS) / STORED % EIGHTS, row = eight * USED + i % STORED, k = k_of(row, K_STEP);
    const int first_row = PARTS == 1 ? i % FILTER / LAG - (MMA_P - 1) : (i % FILTER - ZEROS) / LAG, s = i / FILTER % S, channel_block = i / (FILTER * S);
    const bool used = (PARTS > 1 ? i % FILTER >= ZEROS : i % STORED < USED) && (ALL_USED || row < K);
    Bits elements[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
        const int r = first_row + j / CHANNELS, channel = channel_block * CHANNELS + j % CHANNELS;
        const bool there = used && channel < C && r >= 0 && r < R;
        elements[j] = there ? w[((k * C + channel) * R + r) * S + s] : Bits{0};
    }
    packed_w[i] = chunk_of(elements);
}

// A row's place among those of a block of chunks: row by row through a plane, those that lack one row first.
__host__ __device__ constexpr int place_of(int row) {
    const int phase = (row + LACK) % PHASES;
    return phase * PLANE_ROWS + (row + LACK) / PHASES - (phase < LACK ? phase + 1 : LACK);
}

// A pixel's place among those of chunks: 32 by 32 of each row, then what is left of all rows; of one row of inputs they follow each other anyway.
struct Pixel {
    int row, column;

    __device__ __forceinline__ explicit Pixel(int pixel) {
        constexpr int WHOLE_COLUMNS = FOLD == 1 ? W : W / 32 * 32, LEFT = W - WHOLE_COLUMNS, WHOLE_ROWS = CHUNK_ROWS * WHOLE_COLUMNS;
        if (LEFT > 0 && pixel >= WHOLE_ROWS) {
            row = (pixel - WHOLE_ROWS) / (LEFT > 0 ? LEFT : 1);
            column = WHOLE_COLUMNS + (pixel - WHOLE_ROWS) % (LEFT > 0 ? LEFT : 1);
        } else {
            row = pixel / (WHOLE_COLUMNS > 0 ? WHOLE_COLUMNS : 1);
            column = pixel % (WHOLE_COLUMNS > 0 ? WHOLE_COLUMNS : 1);
        }
    }
};

// What transforms the inputs' layout: PRODUCER_WARPS warps. A lane takes PRODUCER_PIXELS pixels at once, AT_ONCE chunks of each.
__device__ __forceinline__ void transform_chunks(Chunk* stages, PipelineAsync<STAGES>& pipeline, const Bits* __restrict__ x, int n, int warp) {
    constexpr int PIXELS = CHUNK_ROWS * W, PLACES = 99, STRIDE = 32 * PRODUCER_WARPS;
    constexpr int ITERATIONS = (PLACES + PRODUCER_PIXELS * STRIDE - 1) / (PRODUCER_PIXELS * STRIDE);
    const int lane = static_cast<int>(threadIdx.x % 32);
    PipelineState<STAGES> state;
    for (int image = static_cast<int>(blockIdx.x); image < n; image += static_cast<int>(gridDim.x), ++state) {
        Chunk* const chunks = stages + state.index * STAGE;
        const Bits* const planes = x + image * static_cast<long long>(C * H * W);
        if (C * H * W * sizeof(Bits) >= 64 && warp == 0 && lane == 0 && image + static_cast<int>(gridDim.x) < n) {
            bulk_fetch(planes + gridDim.x * static_cast<long long>(C * H * W), C * H * W * static_cast<int>(sizeof(Bits)));
        }
#pragma unroll 1
        for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
            Bits loaded[PRODUCER_PIXELS][AT_ONCE][VECTOR];
            Chunk* to[PRODUCER_PIXELS];
            const int first = (iteration * PRODUCER_PIXELS * PRODUCER_WARPS + warp) * 32 + lane;
#pragma unroll
            for (int i = 0; i < PRODUCER_PIXELS; ++i) {
                const int place = first + i * STRIDE, channel_block = place / PIXELS * AT_ONCE;
                const Pixel pixel(place % PIXELS);
                const int row = pixel.row, column = pixel.column;
                const Bits* const from = planes + (channel_block * CHANNELS * H + row * FOLD - PAD_H) * W + column;
                to[i] = chunks + channel_block * BLOCK + place_of(row) * PITCH + column + PAD_W;
#pragma unroll
                for (int j = 0; j < AT_ONCE * VECTOR; ++j) {
                    const int channel = j / VECTOR * CHANNELS + j % CHANNELS, below = j % VECTOR / CHANNELS;
                    bool there = place < PLACES;
                    if constexpr (C % (AT_ONCE * CHANNELS) > 0) there = there && channel_block * CHANNELS + channel < C;
                    if constexpr (PAD_H > 0) there = there && row * FOLD + below >= PAD_H;
                    if constexpr (PAD_H > 0 || H % FOLD > 0) there = there && row * FOLD + below < H + PAD_H;
                    loaded[i][j / VECTOR][j % VECTOR] = there ? from[(channel * H + below) * W] : Bits{0};
                }
            }
            if (iteration == 0) pipeline.producer_acquire(state);
#pragma unroll
            for (int i = 0; i < PRODUCER_PIXELS; ++i) {
                if (first + i * STRIDE >= PLACES) continue;
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) {
                    const bool exists = CHANNEL_BLOCKS % AT_ONCE == 0 || (first + i * STRIDE) / PIXELS * AT_ONCE + j < CHANNEL_BLOCKS;
                    if (exists) to[i][j * BLOCK] = chunk_of(loaded[i][j]);
                }
            }
        }
        fence_bulk();  // MMAs read chunks by another way
        __syncwarp();
        if (lane == 0) pipeline.producer_commit(state.index);
    }
}

#include "_shift_steps.cuh"

#include "_shift_filters_shared.cuh"

// Starts d = filters * inputs (+ d), of a step.
template <class Part, bool ADDED>
__device__ __forceinline__ void multiply(float (&d)[3][4], const Filters& filters, const Chunk* inputs, int index) {
    static_assert(all_ahead<Part>(), "an operand's second part lies behind its first");
    const Step step = step_of<Part>(index);
#ifdef __CUDACC__
    const unsigned long long pixels = wgmma_operand(inputs, step.inputs * 16, step.inputs_deeper * 16, 128);
    const auto& weights = operand_of(filters, step, index);
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %14, 0; "
        "wgmma.mma_async.sync.aligned.m64n24k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11"
        "}, %12, %13, p, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3])
        : "l"(weights), "l"(pixels), "n"(ADDED));

#else
    wgmma_tf32_wide<ADDED>(d, filters[step.filters].words, step.filters_deeper * 16, STORED * 16, inputs + step.inputs,
                          step.inputs_deeper * 16);
#endif
}

// Stages a subtile's accumulators.
template <int PART, int COUNT>
__device__ __forceinline__ void stage_outputs(const float (&accumulators)[COUNT][4], T* staged_outputs, const T* __restrict__ bias, int warp, int lane, int subtile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Output rows are those of an MMA in reverse.
        const int eight = 8 * PART + warp % 4 * 2 + i, row = eight % EIGHTS * USED + lane / 4, k = k_of(row, K_STEP);
        const int output_row = MMA_P - 1 - eight / EIGHTS;
        if (lane / 4 >= USED || (!ALL_USED && row >= K)) continue;
        const int groups = (P - 1 - output_row) / MMA_P + 1;  // of output rows, that have this one
        T* const stored = staged_outputs + (k * P + output_row) * Q + lane % 4 * 2;
#pragma unroll
        for (int image_tile = 0; image_tile < IMAGE_TILES; ++image_tile) {
            if (IMAGE_TILES > 1 && subtile != image_tile) continue;
#pragma unroll
            for (int j = 0; j < 2 * COUNT; ++j) {
                // Eight columns are in a row or go on in the next; a tile's place is known here, a lane's is not.
                const int first = image_tile * COLUMNS + j / 2 * 8, group = first / PITCH, column = first % PITCH;
                const int behind = lane % 4 * 2 + j % 2;
                const int over = column + 8 <= PITCH ? 0 : PITCH < 8 ? (column + behind) / PITCH : column + behind >= PITCH ? 1 : 0;
                if (column + 8 > Q && column + behind - over * PITCH >= Q) continue;
                if (group + 1 + (column + 7) / PITCH > P / MMA_P && group + over >= groups) continue;
                const float accumulator = finish<EPILOGUE>(accumulators[j / 2][i * 2 + j % 2], bias, k);
                stored[group * (MMA_P * Q) + column + j % 2 + over * (MMA_P * Q - PITCH)] = from_float<T>(accumulator);
            }
        }
    }
}

struct Barriers {
    PipelineAsync<STAGES> inputs;
    PipelineAsync<EPILOGUE_STAGES> outputs;
    OrderedSequenceBarrier<CONSUMER_WARPGROUPS> mainloop_order;  // the warpgroup before has started its MMAs
    Barrier filters_full;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_mma_shift(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
    Chunk* const shared_filters = reinterpret_cast<Chunk*>(smem + BARRIER_BYTES);
    Chunk* const stages = shared_filters + (SHARED_FILTERS ? FILTER_ROWS : 0);  // [stage][channel block][place of a row][column]
    T* const epilogue_stages = reinterpret_cast<T*>(stages + STAGES * STAGE);  // [epilogue stage][output channel][row][column]

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int consumer = warp / 4;
    if (threadIdx.x == 0) {
        barriers.inputs.init(PRODUCER_WARPS, 4 * SUBTILES);
        barriers.outputs.init(4 * SUBTILES, 1);
        barriers.mainloop_order.init();
        if constexpr (SHARED_FILTERS) barrier_init(&barriers.filters_full, 1);
        barrier_init_fence();
        if constexpr (SHARED_FILTERS) {
            barrier_arrive_expect(&barriers.filters_full, 16 * FILTER_ROWS);
            bulk_load(shared_filters, packed_w, 16 * FILTER_ROWS, &barriers.filters_full);
        }
    }
    // Rows and columns of padding, rows that filters of zero meet.
    for (int i = static_cast<int>(threadIdx.x); i < STAGES * STAGE; i += THREADS) stages[i] = Chunk{};
    fence_bulk();
    __syncthreads();

    if (consumer >= CONSUMER_WARPGROUPS) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        const int producer = warp - 4 * CONSUMER_WARPGROUPS;
        if (producer == 0) {
            store_images<K * P * Q, EPILOGUE_STAGE>(epilogue_stages, barriers.outputs, y, n);
        } else {
            transform_chunks(stages, barriers.inputs, x, n, producer - 1);
        }
        return;
    }
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    Filters filters;
    if constexpr (SHARED_FILTERS) barrier_wait(&barriers.filters_full, 0);
    load_filters(filters, SHARED_FILTERS ? shared_filters : packed_w, warp, lane);

    const int images = (n - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
#pragma unroll 1
    for (int tile_index = consumer; tile_index < images * SUBTILES; tile_index += CONSUMER_WARPGROUPS) {
        const int image = tile_index / SUBTILES, subtile = tile_index % SUBTILES;
        const auto state = PipelineState<STAGES>::of(image);
        const auto epilogue = PipelineState<EPILOGUE_STAGES>::of(image);
        const Chunk* const inputs = stages + state.index * STAGE + (PARTS == 1 ? subtile * COLUMNS : 0);
        if constexpr (ORDERED) barriers.mainloop_order.wait(consumer, tile_index / CONSUMER_WARPGROUPS % 2 ^ (consumer == 0 ? 1 : 0));
        barriers.inputs.consumer_wait(state);  // after its turn has come: the phase before is complete
        if (PARTS == 1 || subtile == 0) {
            float accumulators[1][Part<0>::TILES][4];
            wgmma_begin(accumulators);
            multiply<Part<0>, false>(accumulators[0], filters, inputs, 0);
#pragma unroll
            for (int step = 1; step < Part<0>::STEPS; ++step) multiply<Part<0>, true>(accumulators[0], filters, inputs, step);
            wgmma_commit();
            if (ORDERED && lane == 0) barriers.mainloop_order.arrive(consumer);
            wgmma_wait(accumulators);
            if (lane == 0) barriers.inputs.consumer_release(state.index);
            barriers.outputs.producer_acquire(epilogue);
            const T* const image_outputs = y + (static_cast<int>(blockIdx.x) + image * static_cast<int>(gridDim.x)) * static_cast<long long>(K * P * Q);
            T* const staged_outputs = epilogue_stages + epilogue.index * EPILOGUE_STAGE + (WHOLE ? 0 : alignment_offset(image_outputs));
            stage_outputs<0>(accumulators[0], staged_outputs, bias, warp, lane, subtile);
        }
        fence_bulk();
        __syncwarp();
        if (lane == 0) barriers.outputs.producer_commit(epilogue.index);
    }
}
