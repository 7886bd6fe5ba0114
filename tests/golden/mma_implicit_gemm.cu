// conv2d n3 c17 9x7 k33 1x1 f32 nchw
// mma_implicit_gemm precision=tf32 consumer_warpgroups=2 subtiles=1 block_tiles_k=3 stage_channels=8 stages=3

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
//
//   consumer  SUBTILES MMAs of 64 pixels side by side: a warp's are 16 of each, a lane's lane / 4 and lane / 4 + 8; channels
//           lane % 4 and lane % 4 + 4 of eight; of each tile of output channels 2 (lane % 4) and the next
//   producer  a warp of the producer warpgroup: a lane copies the same places of every channel

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

// What happens to a finished accumulator before it is stored: the output channel's bias and the residual are added, then
// comes the activation. A NaN stays a NaN.
// Every family stores through it, so that a further epilogue is written here alone. Needs _element.cuh.

enum class Epilogue { none, bias, bias_relu, bias_add, bias_add_relu };

template <Epilogue EPILOGUE>
constexpr bool HAS_BIAS = EPILOGUE != Epilogue::none;

template <Epilogue EPILOGUE>
__device__ __forceinline__ float activate(float value) {
    if constexpr (EPILOGUE == Epilogue::bias_relu || EPILOGUE == Epilogue::bias_add_relu) value = value < 0.0f ? 0.0f : value;
    return value;
}

// With the output channel's bias in a register.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias) {
    if constexpr (HAS_BIAS<EPILOGUE>) accumulator += bias;
    return activate<EPILOGUE>(accumulator);
}

// And a residual, which is added before the activation.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias, float residual) {
    return activate<EPILOGUE>(accumulator + bias + residual);
}

template <Epilogue EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k, float residual) {
    return finish<EPILOGUE>(accumulator, to_float(bias[k]), residual);
}

// With bias[k], which is read only where there is one.
template <Epilogue EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (HAS_BIAS<EPILOGUE>) accumulator += to_float(bias[k]);
    return activate<EPILOGUE>(accumulator);
}

// Asynchronous copies, as instructions on the GPU and as plain copies on the CPU; a barrier of some warps of a block.
//
// copy_async: BYTES (4, 8, 16) from global to shared memory; where `inside` is false nothing is read and zeros come.
// copy_async_first: the first `read` of BYTES; zeros come for the rest.
// A thread's copies since its last commit are a group; copy_async_wait<N> waits until at most N groups are under way.
// bulk_store (sm_90): contiguous bytes from shared to global memory, by one thread; bytes and both addresses are
// multiples of 16. What threads wrote must be made visible to it: fence_bulk in each of them, a barrier, bulk_store.
// sync_threads: as __syncthreads for THREADS threads, whole warps; `id`, 1 to 15, tells barriers of a block apart.
// arrive_threads counts as well, and does not wait.

#ifdef __CUDACC__
template <int BYTES>
__device__ __forceinline__ void copy_async_first(void* shared, const void* global, int read) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read)
                     : "memory");
    }
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside = true) {
    copy_async_first<BYTES>(shared, global, inside ? BYTES : 0);
}

#else
#include <autotune_host_ptx.h>
#endif

// Barriers that are objects, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// Barrier: an object in shared memory that lets threads wait for others, and for copies, without stopping those
// they wait for. One thread calls barrier_init with the arrivals of a phase; barrier_init_fence and __syncthreads then show
// it to all. Phases are numbered from 0; barrier_wait(b, i & 1) returns once phase i is complete, and must be called before
// phase i + 1 is. bulk_load copies contiguous bytes from global to shared memory, as bulk_store aligned; the phase of its
// barrier completes when the bytes that an arrival by barrier_arrive_expect announced are there, too. Threads that have read
// what a later copy overwrites call fence_bulk before they say so: a load that still waits for its turn reads the new bytes.

#ifdef __CUDACC__
struct alignas(8) Barrier {
    unsigned long long state;
};

__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, int bytes) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    do {  // a loop in C++: ptxas needs far more registers around one in PTX
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!passed);
}

__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, Barrier* barrier) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(global), "r"(bytes), "r"(at)
                 : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif

// Asynchronous copies and barriers, as instructions on the GPU (sm_90) and as plain C++ on the CPU. Needs _ptx_barrier.cuh.
//
// copy_async_arrive: an arrival at a barrier that comes by itself when all copies are there that the thread started by copy_async.

#ifdef __CUDACC__
__device__ __forceinline__ void copy_async_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif

// Matrix products of a warp, as instructions on the GPU and as plain C++ on the CPU.
//
// mma_m16n8k8_tf32: d = a * b + c by all 32 lanes of a warp; of a and b the last 13 bits are ignored, so round with to_tf32.
// Lane 4 g + t holds a (16 x 8) at (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), b (8 x 8) at (t, g), (t + 4, g), and c
// and d (16 x 8) at (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1). Of m16n8k4 it is the first half of a and b.
// The 16-bit MMAs have two neighbouring columns of a, or rows of b, in one word and are twice as deep for as many words.

#ifdef __CUDACC__
// To the nearest number of 10 fraction bits, ties away from zero.
__device__ __forceinline__ float to_tf32(float value) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return __uint_as_float(rounded);
}

#else
#include <autotune_host_ptx.h>
#endif

// Matrix products of a warpgroup, four warps in a row, as instructions on the GPU (sm_90a) and as plain C++ on the CPU.
//
// MMAs whose operands are not those of _ptx_wgmma_rs.cuh are written where they are used, with wgmma_operand. On the CPU wgmma_TYPE_wide computes them: eight columns of
// b are 128 bytes behind the eight before, the second four words `deeper` bytes behind the first; a is a lane's part, or lies in
// shared memory in the same way.
// MMAs are asynchronous: neither d nor a may be touched between wgmma_begin and wgmma_wait, which waits for what was started
// before wgmma_commit; what threads wrote to b must be made visible before: fence_bulk in each of them and a barrier.
// MMAs since the last commit are a group. wgmma_wait_group<N> waits for all groups but the last N: a of the others may then be
// touched, their accumulators only where no MMAs under way add to them. What is put in a is seen after another wgmma_fence.
// warpgroup_reg_dealloc, warpgroup_reg_alloc: registers a thread has from here on, by all warps of a warpgroup, a multiple of 8.

#ifdef __CUDACC__
template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_keep(float (&d)[COLUMNS][TILES][4]) {
#pragma unroll
    for (int i = 0; i < COLUMNS * TILES * 4; ++i) asm volatile("" : "+f"(d[i / (TILES * 4)][i / 4 % TILES][i % 4])::"memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_begin(float (&d)[COLUMNS][TILES][4]) {
    wgmma_keep(d);
    wgmma_fence();
}

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_wait(float (&d)[COLUMNS][TILES][4]) {
    wgmma_wait_group<0>();
    wgmma_keep(d);
}

// Where an operand lies, `offset` bytes behind a pointer: 8 rows of 16 bytes each are contiguous, `deeper` bytes on from four words to
// the next, `further` bytes from eight rows to the next.
__device__ __forceinline__ unsigned long long wgmma_operand(const void* pointer, int offset, int deeper, int further) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
    const unsigned begin = (at >> 4) + (static_cast<unsigned>(offset) / 16 + (static_cast<unsigned>(deeper) / 16 << 16));
    return begin | static_cast<unsigned long long>(further / 16) << 32;
}

__device__ __forceinline__ unsigned wgmma_word(float value) { return __float_as_uint(value); }
__device__ __forceinline__ unsigned wgmma_word(unsigned value) { return value; }

template <int REGISTERS>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
#else
#include <autotune_host_ptx.h>
#endif

// Problem
constexpr int C = 17, H = 9, W = 7;
constexpr int K = 33, R = 1, S = 1;
constexpr int P = 9, Q = 7;
constexpr int PAD_H = 0;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr auto EPILOGUE = Epilogue::none;

// Parameters
constexpr int CONSUMER_WARPGROUPS = 2, SUBTILES = 1, BLOCK_TILES_K = 3;
constexpr int STAGE_CHANNELS = 8;  // channels staged at once
constexpr int STAGES = 3;  // pipeline stages: inputs and filters in shared memory

// Derived
constexpr int PRODUCER_THREADS = 128;  // threads
constexpr int THREADS = 384;
constexpr int PIXELS = 128, TILE_K = 24, BLOCKS_K = 2;  // of a tile
constexpr int PARTS = 1;  // of an input or a filter
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
    packed_w[i] = to_tf32(filter);
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
__device__ __forceinline__ void produce(float* stages, Barrier* full, Barrier* empty, const float* __restrict__ x,
                                       const float* __restrict__ packed_w, int thread, int tiles, int n) {
    int stage = 0, parity = 1;  // nobody holds a buffer before its first use
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
            barrier_wait(empty + stage, parity);
            float* const inputs = stages + stage * (INPUTS + FILTERS);
            if (thread == 0) {
                barrier_arrive_expect(full + stage, 4 * FILTERS);
                bulk_load(inputs + INPUTS, filters, 4 * FILTERS, full + stage);
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
            copy_async_arrive(full + stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
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
            inputs.parts[0][i][j] = to_tf32(loaded[i][j]);
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
#pragma unroll
    for (int i = 0; i < SUBTILES; ++i) multiply<ADDED>(d[i], inputs.parts[0][i], filters, at);
    wgmma_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_mma_implicit_gemm(const float* __restrict__ x, const float* __restrict__ packed_w, const float* __restrict__ bias,
                         float* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    Barrier* const full = reinterpret_cast<Barrier*>(smem);                   // [stage] inputs and filters are there
    Barrier* const empty = full + STAGES;                                     // [stage] all MMAs with them are done
    float* const stages = reinterpret_cast<float*>(smem + 128);  // [stage] channels of inputs, then filters

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int consumer = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i, PRODUCER_THREADS + 1);
            barrier_init(empty + i, 128 * CONSUMER_WARPGROUPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const int tiles = static_cast<int>((n * static_cast<long long>(P * Q) + PIXELS - 1) / PIXELS) * BLOCKS_K;
    if (consumer == CONSUMER_WARPGROUPS) {
        warpgroup_reg_dealloc<48>();
        produce(stages, full, empty, x, packed_w, static_cast<int>(threadIdx.x) - 128 * CONSUMER_WARPGROUPS, tiles, n);
        return;
    }
    warpgroup_reg_alloc<224>();

    int stage = 0, parity = 0;
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
            const float* const inputs = stages + stage * (INPUTS + FILTERS);
            const float* const filters = inputs + INPUTS;
            barrier_wait(full + stage, parity);
            float loaded[SUBTILES][4];
            Inputs operands[2];  // those of a step, multiplied while the next ones are loaded
            load(loaded, inputs, pixels, 0);
            take(operands[0], loaded);
            wgmma_begin(accumulators);
            add_step<true>(accumulators, operands[0], filters, 0);
#pragma unroll
            for (int step = 1; step < STEPS; ++step) {
                load(loaded, inputs, pixels, step);
                wgmma_wait_group<1>();  // for those whose inputs make way
                take(operands[step % 2], loaded);
                add_step<true>(accumulators, operands[step % 2], filters, step);
            }
            wgmma_wait(accumulators);
            barrier_arrive(empty + stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
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
