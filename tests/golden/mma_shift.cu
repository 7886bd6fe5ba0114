// conv2d n2 c3 9x11 k5 3x3 f32 nchw
// mma_shift precision=tf32 mma_p=4 image_tiles=1 filters=shared consumer_warpgroups=2 stages=2 epilogue_stages=2 producer_warps=3 producer_pixels=4

// Convolution as matrix products of warpgroups (wgmma): [filters x taps] * [taps x pixels], MMA_P output rows at once.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as MMAs take them: [channel block][filter column][lag][output channel][VECTOR], then lags of zeros
//   bias      [K]           read where EPILOGUE has one
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// Inputs lie in shared memory in chunks of 16 bytes, CHANNELS channels by FOLD rows of a pixel, row by row: the pixels that all
// outputs need under one tap follow each other, and from tap to tap all of them move on alike. So a tap is an address. Columns of a
// MMA are neighbours through all rows; those that hang over the end of a row are computed and dropped.
// Rows of an MMA are output channels of MMA_P output rows; an output row takes a filter's row one later than the next, so that filters of
// all rows lie, lag by lag, once. Of every eight rows USED are output channels; the others are zeros where shared memory has room for them.
// A block takes whole images, gridDim.x apart, SUBTILES subtiles each. Consumer warpgroups take subtiles in turn, and a consumer warpgroup
// starts its MMAs when the one before has started all of its own: they run one after another without a gap while other consumer warpgroups
// stage outputs.
//
//   consumer  accumulators of a subtile: rows of an MMA lane / 4 and lane / 4 + 8 of a warp's 16, columns 2 (lane % 4) and the next of a tile
//   producer  a warp copies outputs, PRODUCER_WARPS transform the inputs' layout

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

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

__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the calling thread's bulk stores, but for the latest GROUPS, have read their shared memory.
template <int GROUPS>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
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

// Elements between a place in memory and the 16-byte boundary before it. What is staged, or copied, lies like its place in memory.
template <typename E>
__device__ __forceinline__ int alignment_offset(const E* place) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(place) % 16 / sizeof(E));
}

// Images of outputs on their way from shared memory to y. Needs _ptx.cuh and _ptx_barrier.cuh.

// What copies a block's images of ELEMENTS to y: a warp. STAGES epilogue stages of STAGE elements hold them; `full` says of each that an
// image is there, `empty` that it has been read. A block's images are gridDim.x apart.
template <int ELEMENTS, int STAGE, int STAGES, typename T>
__device__ __forceinline__ void store_images(const T* stages, Barrier* full, Barrier* empty, T* __restrict__ y, int n) {
    constexpr int VECTOR = 16 / static_cast<int>(sizeof(T));
    const int lane = static_cast<int>(threadIdx.x % 32);
    int stage = 0, parity = 0;
    for (int image = static_cast<int>(blockIdx.x); image < n; image += static_cast<int>(gridDim.x)) {
        const T* const from = stages + stage * STAGE;
        T* const to = y + image * static_cast<long long>(ELEMENTS);
        barrier_wait(full + stage, parity);
        if constexpr (ELEMENTS % VECTOR == 0) {
            if (lane == 0) bulk_store(to, from, ELEMENTS * static_cast<int>(sizeof(T)));
        } else {
            const int before = alignment_offset(to), head = min((VECTOR - before) % VECTOR, ELEMENTS), tail = (ELEMENTS - head) % VECTOR;
            const int vectors = (ELEMENTS - head) / VECTOR;
            if (lane == 0 && vectors > 0) bulk_store(to + head, from + before + head, 16 * vectors);
            // What whole vectors leave at the beginning and the end.
            if (lane < head) to[lane] = from[before + lane];
            if (lane < tail) to[ELEMENTS - 1 - lane] = from[before + ELEMENTS - 1 - lane];
        }
        bulk_store_commit();
        bulk_store_wait_read<0>();
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// Bytes brought to the second cache ahead of those who load them, as an instruction on the GPU (sm_90); nothing on the CPU.
//
// bulk_fetch: whole vectors of 16 bytes that begin in the `bytes` from a pointer on, but for one at the end.

#ifdef __CUDACC__
__device__ __forceinline__ void bulk_fetch(const void* global, int bytes) {
    const unsigned long long begin = (reinterpret_cast<unsigned long long>(global) + 15) / 16 * 16;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"((bytes - 15) / 16 * 16) : "memory");
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

using T = float;  // x, w, bias and y in memory
using Bits = float;  // of an element of x or w
using Word = float;  // of an MMA
// Problem
constexpr int C = 3, H = 9, W = 11;
constexpr int K = 5, R = 3, S = 3;
constexpr int P = 7, Q = 9;
constexpr auto EPILOGUE = Epilogue::none;

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
constexpr int LAGS = TAPS_H * FOLD, FILTER = LAGS * LAG;  // lags and rows from column to column of filters
constexpr int STEPS = 9;  // of two chunks
constexpr int FILTER_ROWS = 336;  // of 16 bytes
constexpr int STAGE = 103;  // chunks
constexpr int EPILOGUE_STAGE = 320;  // elements

// The output channel of the row of an output row's used ones: `step` output channels from row to row, then those between. There are K or a
// few less than K output channels.
__host__ __device__ constexpr int k_of(int row, int step) { return row % (K / step) * step + row / (K / step); }

// How often the lanes of four warps that stage a column meet in the busiest bank.
constexpr int conflicts(int step) {
    int accumulator = 0;
    for (int eight = 0; eight < EIGHTS; ++eight) {
        int most = 0, met[32] = {};
        for (int i = 0; i < 4 * USED && eight * USED + i / 4 < K; ++i) {
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

struct alignas(16) Chunk {
    Word words[4];
};

// A chunk of elements.
__device__ __forceinline__ Chunk chunk_of(const Bits (&elements)[VECTOR]) {
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        chunk.words[i] = to_tf32(elements[i]);
    }
    return chunk;
}

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Chunk* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= FILTER_ROWS) return;
    const int eight = i / STORED % EIGHTS, row = eight * USED + i % STORED, k = k_of(row, K_STEP);
    const int first_row = i % FILTER / LAG - (MMA_P - 1), s = i / FILTER % S, channel_block = i / (FILTER * S);
    const bool used = i % STORED < USED && row < K;
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
    const int phase = (row + 3) % PHASES;
    return phase * 3 + (row + 3) / PHASES - (phase < 3 ? phase + 1 : 3);
}

// A pixel's place among those of chunks: 32 by 32 of each row, then what is left of all rows; of one row of inputs they follow each other anyway.
struct Pixel {
    int row, column;

    __device__ __forceinline__ explicit Pixel(int pixel) {
        row = pixel / W;
        column = pixel % W;
    }
};

// What transforms the inputs' layout: PRODUCER_WARPS warps. A lane takes PRODUCER_PIXELS pixels at once, AT_ONCE chunks of each.
__device__ __forceinline__ void transform_chunks(Chunk* stages, Barrier* full, Barrier* empty, const Bits* __restrict__ x, int n, int warp) {
    constexpr int PIXELS = CHUNK_ROWS * W, PLACES = 99, STRIDE = 32 * PRODUCER_WARPS;
    constexpr int ITERATIONS = (PLACES + PRODUCER_PIXELS * STRIDE - 1) / (PRODUCER_PIXELS * STRIDE);
    const int lane = static_cast<int>(threadIdx.x % 32);
    int stage = 0, parity = 1;  // nobody has to free a pipeline stage before its first use
    for (int image = static_cast<int>(blockIdx.x); image < n; image += static_cast<int>(gridDim.x)) {
        Chunk* const chunks = stages + stage * STAGE;
        const Bits* const planes = x + image * static_cast<long long>(C * H * W);
        if (warp == 0 && lane == 0 && image + static_cast<int>(gridDim.x) < n) {
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
                const Bits* const from = planes + (channel_block * CHANNELS * H + row * FOLD) * W + column;
                to[i] = chunks + channel_block * BLOCK + place_of(row) * PITCH + column;
#pragma unroll
                for (int j = 0; j < AT_ONCE * VECTOR; ++j) {
                    const int channel = j / VECTOR * CHANNELS + j % CHANNELS, below = j % VECTOR / CHANNELS;
                    const bool there = place < PLACES && channel_block * CHANNELS + channel < C;
                    loaded[i][j / VECTOR][j % VECTOR] = there ? from[(channel * H + below) * W] : Bits{0};
                }
            }
            if (iteration == 0) barrier_wait(empty + stage, parity);
#pragma unroll
            for (int i = 0; i < PRODUCER_PIXELS; ++i) {
                if (first + i * STRIDE >= PLACES) continue;
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) {
                    to[i][j * BLOCK] = chunk_of(loaded[i][j]);
                }
            }
        }
        fence_bulk();  // MMAs read chunks by another way
        __syncwarp();
        if (lane == 0) barrier_arrive(full + stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// Where a step's operands lie, and how far its second chunk is from its first; chunks.
struct Step {
    int filters, filters_deeper, inputs, inputs_deeper;
};

template <int PART>
struct Part {
    static constexpr int FIRST_TAP = 0, TAPS = TAPS_H, FIRST_FILTER = 0, STEPS = ::STEPS, TILES = ::TILES;
};
// Where chunks of taps lie, filters of the part's first row.
template <class Part>
__host__ __device__ constexpr Step step_from(int tap, int chunk, int second_tap, int second_chunk) {
    const auto filters_at = [](int tap, int chunk) { return chunk * FILTER + (Part::FIRST_TAP + tap) * FOLD * LAG + Part::FIRST_FILTER; };
    const auto inputs_at = [](int tap, int chunk) { return chunk / S * BLOCK + place_of(Part::FIRST_TAP + tap) * PITCH + chunk % S; };
    const int filters = filters_at(tap, chunk), inputs = inputs_at(tap, chunk);
    // A single last chunk is multiplied by zeros as well.
    const bool single = second_tap == Part::TAPS;
    return {filters, (single ? CHANNEL_BLOCKS * S * FILTER : filters_at(second_tap, second_chunk)) - filters, inputs,
            single ? 0 : inputs_at(second_tap, second_chunk) - inputs};
}

// Neither second chunk may be before the first one.
template <class Part>
__host__ __device__ constexpr Step step_of(int step) {
    constexpr int ROW_CHUNKS = CHANNEL_BLOCKS * S, PAIRS = ROW_CHUNKS / 2;
    // Of two rows, the one that lies first gives its first chunk to the other one's last.
    const auto before = [](int tap) {
        return (tap ^ 1) < Part::TAPS && place_of(Part::FIRST_TAP + tap) < place_of(Part::FIRST_TAP + (tap ^ 1));
    };
    if (step >= Part::TAPS * PAIRS) {
        const int tap = 2 * (step - Part::TAPS * PAIRS);
        if (tap + 1 == Part::TAPS) return step_from<Part>(tap, ROW_CHUNKS - 1, tap + 1, 0);
        return before(tap) ? step_from<Part>(tap, 0, tap + 1, ROW_CHUNKS - 1) : step_from<Part>(tap + 1, 0, tap, ROW_CHUNKS - 1);
    }
    const int tap = step / (PAIRS > 0 ? PAIRS : 1), chunk = step % (PAIRS > 0 ? PAIRS : 1) * 2 + before(tap);
    return step_from<Part>(tap, chunk, tap, chunk + 1);
}

template <class Part>
__host__ __device__ constexpr bool all_ahead() {
    for (int i = 0; i < Part::STEPS; ++i) {
        if (step_of<Part>(i).filters_deeper < 0 || step_of<Part>(i).inputs_deeper < 0) return false;
    }
    return true;
}
using Filters = const Chunk*;
// Starts d = filters * inputs (+ d), of a step.
template <class Part, bool ADDED>
__device__ __forceinline__ void multiply(float (&d)[3][4], const Filters& filters, const Chunk* inputs, int index) {
    static_assert(all_ahead<Part>(), "an operand's second part lies behind its first");
    const Step step = step_of<Part>(index);
#ifdef __CUDACC__
    const unsigned long long pixels = wgmma_operand(inputs, step.inputs * 16, step.inputs_deeper * 16, 128);
    const unsigned long long weights = wgmma_operand(filters, step.filters * 16, step.filters_deeper * 16, STORED * 16);
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
        const int eight = warp % 4 * 2 + i, row = eight % EIGHTS * USED + lane / 4, k = k_of(row, K_STEP);
        const int output_row = MMA_P - 1 - eight / EIGHTS;
        if (lane / 4 >= USED || row >= K) continue;
        const int groups = (P - 1 - output_row) / MMA_P + 1;  // of output rows, that have this one
        T* const stored = staged_outputs + (k * P + output_row) * Q + lane % 4 * 2;
#pragma unroll
        for (int image_tile = 0; image_tile < IMAGE_TILES; ++image_tile) {
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_mma_shift(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    Barrier* const full = reinterpret_cast<Barrier*>(smem);            // [stage] its inputs are there
    Barrier* const empty = full + STAGES;                              // [stage] all MMAs of its subtiles are done
    Barrier* const epilogue_full = empty + STAGES;                     // [epilogue stage] outputs of all subtiles are there
    Barrier* const epilogue_empty = epilogue_full + EPILOGUE_STAGES;   // [epilogue stage] they have been copied out
    Barrier* const mainloop_order = epilogue_empty + EPILOGUE_STAGES;  // [consumer warpgroup] the one before has started its MMAs
    Barrier* const filters_full = mainloop_order + CONSUMER_WARPGROUPS;  // filters are there
    Chunk* const shared_filters = reinterpret_cast<Chunk*>(smem + 128);
    Chunk* const stages = shared_filters + FILTER_ROWS;  // [stage][channel block][place of a row][column]
    T* const epilogue_stages = reinterpret_cast<T*>(stages + STAGES * STAGE);  // [epilogue stage][output channel][row][column]

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int consumer = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i, PRODUCER_WARPS);
            barrier_init(empty + i, 4 * SUBTILES);
        }
        for (int i = 0; i < EPILOGUE_STAGES; ++i) {
            barrier_init(epilogue_full + i, 4 * SUBTILES);
            barrier_init(epilogue_empty + i, 1);
        }
        for (int i = 0; i < CONSUMER_WARPGROUPS; ++i) barrier_init(mainloop_order + i, 4);
        barrier_init(filters_full, 1);
        barrier_init_fence();
        barrier_arrive_expect(filters_full, 16 * FILTER_ROWS);
        bulk_load(shared_filters, packed_w, 16 * FILTER_ROWS, filters_full);
    }
    // Rows and columns of padding, rows that filters of zero meet.
    for (int i = static_cast<int>(threadIdx.x); i < STAGES * STAGE; i += THREADS) stages[i] = Chunk{};
    fence_bulk();
    __syncthreads();

    if (consumer >= CONSUMER_WARPGROUPS) {
        warpgroup_reg_dealloc<64>();
        const int producer = warp - 4 * CONSUMER_WARPGROUPS;
        if (producer == 0) {
            store_images<K * P * Q, EPILOGUE_STAGE, EPILOGUE_STAGES>(epilogue_stages, epilogue_full, epilogue_empty, y, n);
        } else {
            transform_chunks(stages, full, empty, x, n, producer - 1);
        }
        return;
    }
    warpgroup_reg_alloc<216>();
    barrier_wait(filters_full, 0);
    const Chunk* const filters = shared_filters;
    const int images = (n - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
#pragma unroll 1
    for (int tile_index = consumer; tile_index < images * SUBTILES; tile_index += CONSUMER_WARPGROUPS) {
        const int image = tile_index / SUBTILES, subtile = tile_index % SUBTILES, stage = image % STAGES, epilogue_stage = image % EPILOGUE_STAGES;
        const Chunk* const inputs = stages + stage * STAGE + subtile * COLUMNS;
        barrier_wait(mainloop_order + consumer, tile_index / CONSUMER_WARPGROUPS % 2 ^ (consumer == 0 ? 1 : 0));  // nobody comes before the first one
        barrier_wait(full + stage, image / STAGES % 2);  // after its turn has come: the phase before is complete
        {
            float accumulators[1][Part<0>::TILES][4];
            wgmma_begin(accumulators);
            multiply<Part<0>, false>(accumulators[0], filters, inputs, 0);
#pragma unroll
            for (int step = 1; step < Part<0>::STEPS; ++step) multiply<Part<0>, true>(accumulators[0], filters, inputs, step);
            wgmma_commit();
            if (lane == 0) barrier_arrive(mainloop_order + (consumer + 1) % CONSUMER_WARPGROUPS);
            wgmma_wait(accumulators);
            if (lane == 0) barrier_arrive(empty + stage);
            barrier_wait(epilogue_empty + epilogue_stage, image / EPILOGUE_STAGES % 2 ^ 1);
            T* const staged_outputs = epilogue_stages + epilogue_stage * EPILOGUE_STAGE + alignment_offset(y + (static_cast<int>(blockIdx.x) + image * static_cast<int>(gridDim.x)) * static_cast<long long>(K * P * Q));
            stage_outputs<0>(accumulators[0], staged_outputs, bias, warp, lane, subtile);
        }
        fence_bulk();
        __syncwarp();
        if (lane == 0) barrier_arrive(epilogue_full + epilogue_stage);
    }
}
