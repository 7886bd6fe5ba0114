// conv2d n2 c3 9x11 k5 3x3 f32 nchw
// mma_sweep row_tiles=3 subtiles=1 consumer_warpgroups=2 stages=2 epilogue_stages=2 producer_warps=7 producer_pixels=1 copy_stages=1

// D[npq, rk] = sum over c, s of X[npq, cs] * W[cs, rk], for each row of inputs: M = pixels, N = K output channels of R filter rows, depth = C*S.
// A = x [N, C, H, W], chunks of channels in shared memory.  B = packed_w, in shared memory.  Tile an image; tile space N.
//
// Convolution as matrix products of warpgroups (wgmma): [pixels x taps of a row] * [taps of a row x (filter row, output channel)].
//
//   x         [N, C, H, W]  input
//   packed_w  filters as MMAs take them: [chunk][filter row from the last on, then all but the first again][output channel][VECTOR]
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// A row of inputs is multiplied by all filter rows at once: what comes of it belongs to R rows of outputs, whose accumulators a consumer
// warpgroup holds, output channels side by side. The next row of inputs completes one of them, and a new one takes its accumulators; the
// filter rows that meet the accumulators move on by one, and since they lie in memory one after another, twice, that is another address.
// Inputs lie in shared memory in chunks of 16 bytes, VECTOR channels of a pixel, or the channels that are left of FOLD neighbouring pixels,
// pixel by pixel: a filter column is an address, too. Rows of ROW_TILES row tiles of an image lie side by side, those of one MMA.
// A block takes whole images, gridDim.x apart, SUBTILES subtiles each: of all row tiles the same rows. Consumer warpgroups take subtiles in
// turn.
//
//   consumer  accumulators of pixels lane / 4 and lane / 4 + 8 of a warp's 16, output channels 2 (lane % 4) and the next of a tile
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
constexpr int ROW_TILES = 3, SUBTILES = 1;  // of an image; of a row tile
constexpr int CONSUMER_WARPGROUPS = 2;
constexpr int STAGES = 2;  // pipeline stages: inputs in shared memory
constexpr int EPILOGUE_STAGES = 2;  // epilogue stages
constexpr int PRODUCER_WARPS = 7, PRODUCER_PIXELS = 1;  // warps; pixels of a lane
constexpr int COPY_STAGES = 1;  // buffers of images as they lie

// Derived
constexpr int THREADS = 512;
constexpr int VECTOR = 4;  // elements of a chunk
constexpr int WHOLE_BLOCKS = 0;  // of VECTOR channels
constexpr int PLANES = 1, AT_ONCE = 1;  // chunks of a pixel, that a lane takes together
constexpr int PART = 4, FOLD = 1;  // channels of a pixel, and pixels, of a chunk of those that are left
constexpr int ROW_CHUNKS = 3, STEPS = 2;  // of a filter row; of two chunks
constexpr int PADDED_K = 8, RUN = 40;  // rows of filters of a filter row; of all of a chunk
constexpr int PITCH = 11, ACROSS = 33;  // chunks of a row of a row tile; of all row tiles
constexpr int TILE_P = 3, SUBTILE_P = 3;  // of outputs
constexpr int PLANE = 165, STAGE = 198;  // chunks
constexpr int FILTER_ROWS = 160;  // of 16 bytes
constexpr int EPILOGUE_STAGE = 320;  // elements
constexpr int IMAGE = C * H * W, COPY_STAGE = 300;  // elements
constexpr int TILES = PADDED_K / 8;  // of a filter row
constexpr int PAD_H = 0, PAD_W = 0;
constexpr int CHANNEL_ITERATIONS = 1, PLACES = 99;  // over the channels of a pixel; times pixels
constexpr int LEFT_CHANNELS = 3;  // of a pixel, that are not whole chunks
constexpr bool WHOLE = false;  // images of outputs begin on 16 bytes
constexpr int BARRIER_BYTES = 128;
constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 200;

// The filter row that comes `place`-th in memory.
__host__ __device__ constexpr int filter_row(int place) { return (2 * R - 1 - place) % R; }

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Chunk* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= FILTER_ROWS) return;
    const int output_channel = i % PADDED_K, r = filter_row(i / PADDED_K % (2 * R - 1)), chunk = i / RUN;
    const bool left = chunk >= WHOLE_BLOCKS * S;
    Bits elements[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
        const int s = left ? (chunk - WHOLE_BLOCKS * S) * FOLD + j / PART : chunk % S;
        const int channel = left ? WHOLE_BLOCKS * VECTOR + j % PART : chunk / S * VECTOR + j;
        const bool there = output_channel < K && chunk < ROW_CHUNKS && s < S && channel < C;
        elements[j] = there ? w[((output_channel * C + channel) * R + r) * S + s] : Bits{0};
    }
    packed_w[i] = chunk_of(elements);
}

#include "_sweep_producer.cuh"

// Where the pixels of a chunk of a filter row begin, chunks.
__device__ __forceinline__ constexpr int pixels_at(int chunk) {
    const bool left = chunk >= WHOLE_BLOCKS * S;
    return left ? WHOLE_BLOCKS * PLANE + (chunk - WHOLE_BLOCKS * S) * FOLD : chunk / S * PLANE + chunk % S;
}

// Starts accumulators of ROWS filter rows += pixels * filters, of a step.
template <int ROWS, int STEP>
__device__ __forceinline__ void multiply(float (&d)[ROWS * TILES][4], const Chunk* pixels, const Chunk* filters) {
    constexpr int FIRST = pixels_at(2 * STEP);
    // A single last chunk is multiplied by zeros as well.
    constexpr int SECOND = 2 * STEP + 1 < ROW_CHUNKS ? pixels_at(2 * STEP + 1) : FIRST;
#ifdef __CUDACC__
    const unsigned long long a = wgmma_operand(pixels, FIRST * 16, (SECOND - FIRST) * 16, 128);
    const unsigned long long b = wgmma_operand(filters, STEP * (2 * RUN * 16), RUN * 16, 128);
    if constexpr (ROWS == 1) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %6, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3"
        "}, %4, %5, p, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
        : "l"(a), "l"(b), "n"(1));

    } else if constexpr (ROWS == 2) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %10, 0; "
        "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7"
        "}, %8, %9, p, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3])
        : "l"(a), "l"(b), "n"(1));

    } else if constexpr (ROWS == 3) {
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
        : "l"(a), "l"(b), "n"(1));

    }
#else
    wgmma_tf32_wide<true>(d, pixels[FIRST].words, (SECOND - FIRST) * 16, 128, filters + STEP * 2 * RUN, RUN * 16);
#endif
}

// All steps of a row of inputs, for ROWS filter rows.
template <int ROWS, int STEP = 0>
__device__ __forceinline__ void multiply_row(float (&d)[ROWS * TILES][4], const Chunk* pixels, const Chunk* filters) {
    if constexpr (STEP < STEPS) {
        multiply<ROWS, STEP>(d, pixels, filters);
        multiply_row<ROWS, STEP + 1>(d, pixels, filters);
    }
}

// Makes a row of accumulators zero where they are. Where a constant is assigned to some of them, or they are copied for the compiler to
// see, ptxas runs all MMAs one by one.
__device__ __forceinline__ void clear(float (&d)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < TILES * 4; ++i) {
#ifdef __CUDACC__
        asm volatile("mov.b32 %0, 0;" : "+f"(d[i / 4][i % 4]));
#else
        d[i / 4][i % 4] = 0;
#endif
    }
}

// Copies a row of accumulators.
__device__ __forceinline__ void move(float (&to)[TILES][4], float (&from)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < TILES * 4; ++i) {
#ifdef __CUDACC__
        asm volatile("mov.b32 %0, %1;" : "+f"(to[i / 4][i % 4]) : "f"(from[i / 4][i % 4]));
#else
        to[i / 4][i % 4] = from[i / 4][i % 4];
#endif
    }
}

// Has a row of outputs computed here: where ptxas puts it off to behind the next MMAs, it runs these one by one.
__device__ __forceinline__ void keep(T (&row)[TILES][4]) {
#ifdef __CUDACC__
    constexpr int ELEMENTS = 4 / static_cast<int>(sizeof(T));  // of a register
#pragma unroll
    for (int i = 0; i < TILES * 4 / ELEMENTS; ++i) asm volatile("" : "+r"(reinterpret_cast<unsigned*>(row[i * ELEMENTS / 4])[i % (4 / ELEMENTS)]));
#endif
}

// Adds to the first BLOCKS rows of accumulators a row of inputs times the filter rows from the PLACE-th in memory on.
template <int BLOCKS, int PLACE>
__device__ __forceinline__ void take_row(float (&accumulators)[R][TILES][4], const Chunk* pixels, const Chunk* filters) {
    multiply_row<BLOCKS>(reinterpret_cast<float (&)[BLOCKS * TILES][4]>(accumulators), pixels, filters + PLACE * PADDED_K);
}

// Takes the rows of inputs of a subtile from ROW on, one after the other. R rows of accumulators are for as many rows of outputs in turn; the one
// that a row of inputs completes is taken out and free for a new one, and staged while the next row's MMAs run.
template <int ROW, typename Wait, typename Release, typename Take, typename Stage>
__device__ __forceinline__ void sweep(float (&accumulators)[R][TILES][4], const Chunk* inputs, const Chunk* filters,
                                      const Wait& wait_for_epilogue_stage, const Release& release_stage, const Take& take,
                                      const Stage& stage_outputs) {
    constexpr int LAST = SUBTILE_P + R - 2, LOW = ROW < R ? 0 : ROW - R + 1;
    constexpr bool MOVED = ROW >= SUBTILE_P && ROW >= R;  // the rows that are left, to the first accumulators
    constexpr int FREE = MOVED ? 0 : LOW % R, MOST = SUBTILE_P < R ? SUBTILE_P : R;
    constexpr int BLOCKS = MOVED ? SUBTILE_P - LOW : ROW + 1 < MOST ? ROW + 1 : MOST;
    wgmma_begin(accumulators);
    take_row<BLOCKS, MOVED ? 0 : R - 1 - ROW % R>(accumulators, inputs + ROW * ACROSS, filters);
    wgmma_commit();
    if constexpr (ROW == R) wait_for_epilogue_stage();
    if constexpr (ROW >= R) stage_outputs(ROW - R);
    wgmma_wait(accumulators);
    if constexpr (ROW == LAST) release_stage();
    if constexpr (ROW >= R - 1) {
        take(accumulators[FREE]);
        if constexpr (ROW < SUBTILE_P - 1) {
            clear(accumulators[FREE]);
        } else if constexpr (ROW < LAST) {
            // No new row takes its accumulators: the rows that are left move on to the first ones.
#pragma unroll
            for (int turn = 0; turn < (MOVED ? 1 : (LOW + 1) % R); ++turn) {
#pragma unroll
                for (int j = 0; j < (MOVED ? SUBTILE_P - 1 - LOW : R - 1); ++j) {
                    move(accumulators[(FREE - turn + j + R) % R], accumulators[(FREE - turn + j + 1 + R) % R]);
                }
            }
        }
    }
    if constexpr (ROW < LAST) sweep<ROW + 1>(accumulators, inputs, filters, wait_for_epilogue_stage, release_stage, take, stage_outputs);
}

struct Barriers {
    PipelineAsync<STAGES> inputs;
    PipelineAsync<EPILOGUE_STAGES> outputs;
    PipelineAsync<COPY_STAGES> copies;  // of images as they lie
    Barrier filters_full;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_mma_sweep(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
    Chunk* const filters = reinterpret_cast<Chunk*>(smem + BARRIER_BYTES);
    Chunk* const stages = filters + FILTER_ROWS;                                                            // [stage][channel block][row][row tile][column]
    T* const epilogue_stages = reinterpret_cast<T*>(stages + STAGES * STAGE);                               // [epilogue stage][output channel][row][column]
    Bits* const copy_stages = reinterpret_cast<Bits*>(epilogue_stages + EPILOGUE_STAGES * EPILOGUE_STAGE);  // [copy][channel][row][column]

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int consumer = warp / 4;
    if (threadIdx.x == 0) {
        barriers.inputs.init(PRODUCER_WARPS, 4 * SUBTILES);
        barriers.outputs.init(4 * SUBTILES, 1);
        barriers.copies.init(1, PRODUCER_WARPS);
        barrier_init(&barriers.filters_full, 1);
        barrier_init_fence();
        for (int i = 0; i < COPY_STAGES; ++i) {
            const int image = static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x);
            if (image < n) copy_image(copy_stages + i * COPY_STAGE, x, image, n, barriers.copies.full + i);
        }
        barrier_arrive_expect(&barriers.filters_full, 16 * FILTER_ROWS);
        bulk_load(filters, packed_w, 16 * FILTER_ROWS, &barriers.filters_full);
    }
    // Rows and columns of padding, pixels that filters of zero meet.
    for (int i = static_cast<int>(threadIdx.x); i < STAGES * STAGE; i += THREADS) stages[i] = Chunk{};
    fence_bulk();
    __syncthreads();

    if (consumer >= CONSUMER_WARPGROUPS) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        const int producer = warp - 4 * CONSUMER_WARPGROUPS;
        if (producer == 0) {
            store_images<K * P * Q, EPILOGUE_STAGE>(epilogue_stages, barriers.outputs, y, n);
        } else {
            transform_chunks(stages, copy_stages, barriers.inputs, barriers.copies, x, n, producer - 1);
        }
        return;
    }
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    barrier_wait(&barriers.filters_full, 0);

    // A lane's two pixels of a row of inputs: the first of their outputs, and how many rows of them there are.
    int first[2], rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int pixel = warp % 4 * 16 + i * 8 + lane / 4, row_tile = pixel / PITCH, column = pixel % PITCH;
        first[i] = row_tile * (TILE_P * Q) + column + lane % 4 * (2 * P * Q);
        rows[i] = row_tile < ROW_TILES && column < Q ? min(TILE_P, P - row_tile * TILE_P) : 0;
    }
    const int images = (n - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
#pragma unroll 1
    for (int tile_index = consumer; tile_index < images * SUBTILES; tile_index += CONSUMER_WARPGROUPS) {
        const int image = tile_index / SUBTILES, subtile = tile_index % SUBTILES;
        const auto state = PipelineState<STAGES>::of(image);
        const auto epilogue = PipelineState<EPILOGUE_STAGES>::of(image);
        const Chunk* const inputs = stages + state.index * STAGE + subtile * (SUBTILE_P * ACROSS);
        const T* const image_outputs = y + (static_cast<int>(blockIdx.x) + image * static_cast<int>(gridDim.x)) * static_cast<long long>(K * P * Q);
        T* const outputs = epilogue_stages + epilogue.index * EPILOGUE_STAGE + (WHOLE ? 0 : alignment_offset(image_outputs));
        float accumulators[R][TILES][4];
#pragma unroll
        for (int i = 0; i < R; ++i) clear(accumulators[i]);
        // A row of outputs that is complete, out of its accumulators, which are for another one then: it is staged while that one's MMAs
        // run.
        alignas(8) T complete[TILES][4];
        const auto take = [&](float (&done)[TILES][4]) {
#pragma unroll
            for (int i = 0; i < TILES * 4; ++i) {
                const int output_channel = i / 4 * 8 + lane % 4 * 2 + i % 2;
                complete[i / 4][i % 4] = from_float<T>(finish<EPILOGUE>(done[i / 4][i % 4], bias, K % 8 == 0 ? output_channel : min(output_channel, K - 1)));
            }
            keep(complete);
        };
        const auto stage_outputs = [&](int row) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < 2 * TILES; ++j) {
                    if (K % 8 > 0 && j / 2 * 8 + lane % 4 * 2 + j % 2 >= K) continue;
                    if (row < rows[i]) outputs[first[i] + row * Q + (j / 2 * 8 + j % 2) * (P * Q)] = complete[j / 2][i * 2 + j % 2];
                }
            }
        };
        barriers.inputs.consumer_wait(state);
        const auto wait_for_epilogue_stage = [&] { barriers.outputs.producer_acquire(epilogue); };
        const auto release_stage = [&] {
            if (lane == 0) barriers.inputs.consumer_release(state.index);
        };
        sweep<0>(accumulators, inputs, filters, wait_for_epilogue_stage, release_stage, take,
                 [&](int row) { stage_outputs(subtile * SUBTILE_P + row); });
        if constexpr (SUBTILE_P == 1) wait_for_epilogue_stage();
        stage_outputs(subtile * SUBTILE_P + SUBTILE_P - 1);
        fence_bulk();
        __syncwarp();
        if (lane == 0) barriers.outputs.producer_commit(epilogue.index);
    }
}
