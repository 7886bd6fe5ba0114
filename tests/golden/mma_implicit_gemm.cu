// conv2d n3 c17 9x7 k33 1x1 f32 nchw
// mma_implicit_gemm precision=tf32 consumer_warpgroups=2 subtiles=1 block_tiles_k=3 stage_channels=8 stages=3

// D[npq, k] = sum over c, r, s of X[npq, crs] * W[crs, k]: M = N*P*Q pixels, N = K output channels, depth = C*R*S.
// A = x [N, C, H, W], rows in shared memory, in registers when it is multiplied.  B = packed_w, a bulk copy a stage.
// Tile PIXELS x TILE_K; tile space ceil(N*P*Q / PIXELS) * ceil(K / TILE_K).
//
// Convolution as matrix products of warpgroups (wgmma): [pixels x (channels x taps)] * [(channels x taps) x output channels].
//
//   x         [N, C, H, W]  input
//   packed_w  filters as MMAs take them: [block of output channels][eight channels][tap][half of the eight][output channel][4]
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// Output pixels of all images are counted through, and a block computes PIXELS of them by TILE_K output channels at a time: a tile. The
// rows of inputs that these need, of STAGE_CHANNELS channels at once, are copied to shared memory as they lie, with zeros for padding, and
// serve all taps: a lane loads its part of an MMA from registers' addresses that differ from tap to tap by a constant. Filters follow the
// same way, packed, as one bulk copy; MMAs read them from shared memory.
// With SPLIT inputs are split in two where they are loaded, filters where they are packed. MMAs are summed up by tensor cores, which cut
// off what does not fit, for STAGE_CHANNELS channels only.
//
//   consumer  SUBTILES MMAs of 64 pixels side by side: a warp's are 16 of each, a lane's lane / 4 and lane / 4 + 8; channels
//           lane % 4 and lane % 4 + 4 of eight; of each tile of output channels 2 (lane % 4) and the next
//   producer  a warp of the producer warpgroup: a lane copies the same places of every channel

#include "_element.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_barrier.cuh"

#include "_pipeline.cuh"

#include "_ptx_async.cuh"

#include "_ptx_mma.cuh"

#include "_split_tf32.cuh"

#include "_accumulators.cuh"

#include "_ptx_wgmma.cuh"

// Problem
constexpr int C = 17, H = 9, W = 7;
constexpr int K = 33, R = 1, S = 1;
constexpr int P = 9, Q = 7;
[[maybe_unused]] constexpr int STRIDE_W = 1;
constexpr int PAD_H = 0;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<false, false, identity>;

// Parameters
constexpr int CONSUMER_WARPGROUPS = 2, SUBTILES = 1, BLOCK_TILES_K = 3;
constexpr int STAGE_CHANNELS = 8;  // channels staged at once
constexpr int STAGES = 3;  // pipeline stages: inputs and filters in shared memory

// Derived
constexpr int PRODUCER_THREADS = 128;  // threads
constexpr int THREADS = 384;
constexpr int PIXELS = 128, TILE_K = 24, BLOCKS_K = 2;  // of a tile
constexpr int PARTS = 1;  // of an input or a filter
constexpr bool SPLIT = PARTS == 2;
constexpr int CHANNEL_TILES = 3;  // of STAGE_CHANNELS channels
constexpr int TAPS = R * S, STEPS = STAGE_CHANNELS / 8 * TAPS;
constexpr int ROW_STEP = 1;  // rows of x from one that is staged to the next
constexpr int STRIDE_ROWS = 1;  // staged rows from an output row to the next
constexpr int REMAINDERS = 1, REMAINDER = 7;  // parts of a staged row, their columns
constexpr int PITCH = 7;  // words of a staged row
constexpr int IMAGE_ROWS = 9;  // staged rows that an image's outputs need
constexpr int WINDOW = 140, PLANE = 168;  // words of a channel: used, from one to the next
constexpr int VECTOR = 1, LEFT = 0;  // words that are copied at once, and before the first of x in a staged row
constexpr int PLACES = 2;  // vectors of a channel that a thread copies
constexpr int INPUTS = STAGE_CHANNELS * PLANE, FILTERS = STEPS * PARTS * 8 * TILE_K;  // words of a buffer
constexpr int PACKED = BLOCKS_K * CHANNEL_TILES * FILTERS;

extern "C" __global__ void pack_filters(const float* __restrict__ w, float* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= PACKED) return;
    const int step = i / (PARTS * 8 * TILE_K), tap = step % TAPS, eight = step / TAPS % (CHANNEL_TILES * STAGE_CHANNELS / 8);
    const int channel = eight * 8 + i / (4 * TILE_K) % 2 * 4 + i % 4, k = i / (CHANNEL_TILES * FILTERS) * TILE_K + i / 4 % TILE_K;
    const float filter = channel < C && k < K ? w[(k * C + channel) * TAPS + tap] : 0.0f;
    packed_w[i] = tf32_part<PARTS>(filter, i / (8 * TILE_K) % 2);
}

// A block's next tile: its output channels, and where its pixels begin.
struct Tile {
    int block_k;
    int image, row, column;  // of the first pixel

    __device__ __forceinline__ Tile(int tile)
        : block_k(tile % BLOCKS_K * TILE_K) {
        const long long pixel = tile / BLOCKS_K * static_cast<long long>(PIXELS), output_row = pixel / Q;
        image = static_cast<int>(output_row / P);
        row = static_cast<int>(output_row % P);
        column = static_cast<int>(pixel % Q);
    }
};

// Supplies all consumer warpgroups: copies inputs and filters of tile after tile, STAGES ahead.
__device__ __forceinline__ void produce(float* stages, PipelineAsync<STAGES>& pipeline, const float* __restrict__ x,
                                       const float* __restrict__ packed_w, int thread, int tiles, int n) {
    PipelineState<STAGES> state;
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
        const Tile tile(index);
        const float* const planes = x + tile.image * static_cast<long long>(C * H * W);
        int offsets[PLACES];  // of elements of channel 0 from there; -1 where there is padding
#pragma unroll
        for (int i = 0; i < PLACES; ++i) {
            const int place = (i * PRODUCER_THREADS + thread) * VECTOR, staged_row = tile.row * STRIDE_ROWS + place / PITCH;
            const int row = staged_row % IMAGE_ROWS * ROW_STEP - PAD_H, image = staged_row / IMAGE_ROWS;
            const int column = place % PITCH - LEFT;
            const bool inside = tile.image + image < n && row >= 0 && row < H && column >= 0 && column < W;
            offsets[i] = inside ? (image * (C * H) + row) * W + column : -1;
        }
        const float* filters = packed_w + tile.block_k / TILE_K * static_cast<long long>(CHANNEL_TILES * FILTERS);
#pragma unroll 1
        for (int channel_tile = 0; channel_tile < CHANNEL_TILES; ++channel_tile) {
            pipeline.producer_acquire(state);
            float* const inputs = stages + state.index * (INPUTS + FILTERS);
            if (thread == 0) {
                barrier_arrive_expect(pipeline.full + state.index, 4 * FILTERS);
                bulk_load(inputs + INPUTS, filters, 4 * FILTERS, pipeline.full + state.index);
            }
            filters += FILTERS;
#pragma unroll 4
            for (int i = 0; i < STAGE_CHANNELS; ++i) {
                const int channel = channel_tile * STAGE_CHANNELS + i;
                const float* const plane = planes + channel * (H * W);
#pragma unroll
                for (int j = 0; j < PLACES; ++j) {
                    const int place = (j * PRODUCER_THREADS + thread) * VECTOR;
                    if (WINDOW < PLACES * PRODUCER_THREADS * VECTOR && j == PLACES - 1 && place >= WINDOW) continue;
                    const bool inside = offsets[j] >= 0 && channel < C;
                    copy_async<4 * VECTOR>(inputs + i * PLANE + place, inside ? plane + offsets[j] : x, inside);
                }
            }
            copy_async_arrive(pipeline.full + state.index);
            ++state;
        }
    }
}

// A lane's inputs of a step: rows of an MMA lane / 4 and lane / 4 + 8, depths lane % 4 and lane % 4 + 4.
struct Inputs {
    float parts[PARTS][SUBTILES][4];
};

// Loads them, of eight channels and a tap.
__device__ __forceinline__ void load(float (&loaded)[SUBTILES][4], const float* inputs, const int (&pixels)[SUBTILES][2], int step) {
    const int tap = step % TAPS, row = tap / S * DILATION_H, column = tap % S * DILATION_W;
    const int at = step / TAPS * 8 * PLANE + row * PITCH + column % REMAINDERS * REMAINDER + column / REMAINDERS;
#pragma unroll
    for (int i = 0; i < SUBTILES; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) loaded[i][j] = inputs[pixels[i][j % 2] + at + j / 2 * 4 * PLANE];
    }
}

// Rounds them, or splits them.
__device__ __forceinline__ void take(Inputs& inputs, const float (&loaded)[SUBTILES][4]) {
#pragma unroll
    for (int i = 0; i < SUBTILES; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) inputs.parts[part][i][j] = tf32_part<PARTS>(loaded[i][j], part);
        }
    }
}

// Starts d = inputs * filters (+ d) of 64 pixels.
template <bool ADDED>
__device__ __forceinline__ void multiply(float (&d)[BLOCK_TILES_K][4], const float (&a)[4], const float* filters, int offset) {
#ifdef __CUDACC__
    const unsigned long long operand = wgmma_operand(filters, 4 * offset, 16 * TILE_K, 128);
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %17, 0; "
        "wgmma.mma_async.sync.aligned.m64n24k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11"
        "}, {%12, %13, %14, %15}, %16, p, 1, 1;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3])
        : "r"(wgmma_word(a[0])), "r"(wgmma_word(a[1])), "r"(wgmma_word(a[2])), "r"(wgmma_word(a[3])), "l"(operand), "n"(ADDED));

#else
    wgmma_tf32_wide<ADDED>(d, a, filters + offset, 16 * TILE_K);
#endif
}

// Starts the MMAs of a step.
template <bool ADDED>
__device__ __forceinline__ void add_step(float (&d)[SUBTILES][BLOCK_TILES_K][4], const Inputs& inputs, const float* filters, int step) {
    wgmma_fence();
    const int at = step * (PARTS * 8 * TILE_K);
    if constexpr (SPLIT) {
        // Those of a small part come first, so that nothing large is cut off while they are added.
#pragma unroll
        for (int i = 0; i < SUBTILES; ++i) multiply<ADDED>(d[i], inputs.parts[PARTS - 1][i], filters, at);
#pragma unroll
        for (int i = 0; i < SUBTILES; ++i) multiply<true>(d[i], inputs.parts[0][i], filters, at + 8 * TILE_K);
    }
#pragma unroll
    for (int i = 0; i < SUBTILES; ++i) multiply<ADDED || SPLIT>(d[i], inputs.parts[0][i], filters, at);
    wgmma_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_mma_implicit_gemm(const float* __restrict__ x, const float* __restrict__ packed_w, const float* __restrict__ bias,
                         float* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    // full: inputs and filters are there; empty: all MMAs with them are done
    auto& pipeline = *reinterpret_cast<PipelineAsync<STAGES>*>(smem);
    float* const stages = reinterpret_cast<float*>(smem + 128);  // [stage] channels of inputs, then filters

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int consumer = warp / 4;
    if (threadIdx.x == 0) {
        pipeline.init(PRODUCER_THREADS + 1, 128 * CONSUMER_WARPGROUPS);
        barrier_init_fence();
    }
    __syncthreads();
    const int tiles = static_cast<int>((n * static_cast<long long>(P * Q) + PIXELS - 1) / PIXELS) * BLOCKS_K;
    if (consumer == CONSUMER_WARPGROUPS) {
        warpgroup_reg_dealloc<48>();
        produce(stages, pipeline, x, packed_w, static_cast<int>(threadIdx.x) - 128 * CONSUMER_WARPGROUPS, tiles, n);
        return;
    }
    warpgroup_reg_alloc<224>();

    PipelineState<STAGES> state;
#pragma unroll 1
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
        const Tile tile(index);
        int pixels[SUBTILES][2];  // where a lane's are among a channel's inputs
        // How many pixels a lane's is behind the first of the tile's first row.
        const auto behind_row = [&](int i, int j) {
            return tile.column + (consumer * SUBTILES + i) * 64 + warp % 4 * 16 + j * 8 + lane / 4;
        };
#pragma unroll
        for (int i = 0; i < SUBTILES; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int behind = behind_row(i, j), row = tile.row + behind / Q;
                const int staged_row = (row / P * IMAGE_ROWS + row % P * STRIDE_ROWS) - tile.row * STRIDE_ROWS;
                pixels[i][j] = staged_row * PITCH + behind % Q + lane % 4 * PLANE;
            }
        }
        float accumulators[SUBTILES][BLOCK_TILES_K][4] = {};
#pragma unroll 1
        for (int channel_tile = 0; channel_tile < CHANNEL_TILES; ++channel_tile) {
            const float* const inputs = stages + state.index * (INPUTS + FILTERS);
            const float* const filters = inputs + INPUTS;
            pipeline.consumer_wait(state);
            float loaded[SUBTILES][4];
            Inputs operands[2];  // those of a step, multiplied while the next ones are loaded
            load(loaded, inputs, pixels, 0);
            take(operands[0], loaded);
            float partial[SUBTILES][BLOCK_TILES_K][4];
            auto& sums = SPLIT ? partial : accumulators;
            wgmma_begin(sums);
            add_step<!SPLIT>(sums, operands[0], filters, 0);
#pragma unroll
            for (int step = 1; step < STEPS; ++step) {
                load(loaded, inputs, pixels, step);
                wgmma_wait_group<1>();  // for those whose inputs make way
                take(operands[step % 2], loaded);
                add_step<true>(sums, operands[step % 2], filters, step);
            }
            wgmma_wait(sums);
            pipeline.consumer_release(state.index);
            ++state;
            if constexpr (SPLIT) {
#pragma unroll
                for (int i = 0; i < SUBTILES; ++i) promote(accumulators[i], partial[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < SUBTILES; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int behind = behind_row(i, j), row = tile.row + behind / Q, image = tile.image + row / P;
                if (image >= n) continue;
                float* const output = y + image * static_cast<long long>(K * P * Q) + row % P * Q + behind % Q;
#pragma unroll
                for (int l = 0; l < 2 * BLOCK_TILES_K; ++l) {
                    const int k = tile.block_k + l / 2 * 8 + lane % 4 * 2 + l % 2;
                    if (K % TILE_K > 0 && k >= K) continue;
                    output[k * (P * Q)] = finish<EPILOGUE>(accumulators[i][l / 2][j * 2 + l % 2], bias, k);
                }
            }
        }
    }
}
