// conv2d n3 c1 30x30 k12 5x5 f32 nchw
// mma_toeplitz rows=11 bands=1 tiles=1 staging=3 slots=2 min_blocks=2

// Convolution of one channel as matrix products: [16 pairs of output columns x taps] * [taps x 8 sums], on tensor cores.
// A pair is the columns q and q + 1 of a row, q even; the sums are those of both columns, of four maps. With the filter of a
// row moved on by one tap for the second column, both take the same taps q to q + S of x: an even number of columns, of which
// a product takes eight, as they lie in x.
//
//   x         [N, 1, H, W]  input
//   packed_w  filters as the lanes of a warp take them: [tile][vector][lane][4]
//   bias      [K]           not read without WITH_BIAS
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// A block takes whole images, or BANDS bands of their rows, gridDim.x apart. A lane keeps its taps of ROWS + R - 1 rows of
// input in registers and computes tile after tile of sums: row r of the filter takes for output row i the fragment of input
// row i + r. Outputs of a phase, TILES tiles, are staged in one of STAGING buffers and leave as bulk copies, in the order of y.
//
//   warp  16 pairs of columns of ROWS output rows; the last two copy inputs and outputs
//   lane  pairs lane / 4 and lane / 4 + 8;  taps lane % 4 and lane % 4 + 4 of a unit;  sums 2 (lane % 4) and the next of a tile

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Neighbours {
    T at[N];
};

// What happens to a finished sum before it is stored: the map's bias, then the rectifier. A NaN stays a NaN.
// Needs _element.cuh.

template <bool WITH_BIAS, bool WITH_RELU, typename T>
__device__ __forceinline__ float epilogue(float sum, const T* __restrict__ bias, int map) {
    if constexpr (WITH_BIAS) sum += to_float(bias[map]);
    if constexpr (WITH_RELU) sum = sum < 0.0f ? 0.0f : sum;
    return sum;
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

template <int THREADS>
__device__ __forceinline__ void sync_threads(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void arrive_threads(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

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

// An arrival where `arrives`, without a branch.
__device__ __forceinline__ void barrier_arrive_if(Barrier* barrier, bool arrives) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(at),
                 "r"(static_cast<unsigned>(arrives))
                 : "memory");
}

// An arrival; whether it completed the phase. What the others wrote before they arrived is visible to the last.
__device__ __forceinline__ bool barrier_arrive_last(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned last;
    asm volatile(
        "{ .reg .b64 before; .reg .u32 awaited; .reg .pred p, passed; mbarrier.arrive.shared::cta.b64 before, [%1]; "
        "mbarrier.pending_count.b64 awaited, before; setp.eq.u32 p, awaited, 1; "
        "@p mbarrier.test_wait.shared::cta.b64 passed, [%1], before; selp.u32 %0, 1, 0, p; }"
        : "=r"(last)
        : "r"(at)
        : "memory");
    return last;
}

__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, int bytes) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

// Whether the phase of this parity is complete.
__device__ __forceinline__ bool barrier_passed(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(at), "r"(parity)
        : "memory");
    return passed;
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

// Matrix products of a warp, as instructions on the GPU and as plain C++ on the CPU.
//
// mma_m16n8k8_tf32: d = a * b + c by all 32 lanes of a warp; of a and b the last 13 bits are ignored, so round with to_tf32.
// Lane 4 g + t holds a (16 x 8) at (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), b (8 x 8) at (t, g), (t + 4, g), and c
// and d (16 x 8) at (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1). Of m16n8k4 it is the first half of a and b.
// The 16-bit products have two neighbouring columns of a, or rows of b, in one word and are twice as deep for as many words.

#ifdef __CUDACC__
// To the nearest number of 10 fraction bits, ties away from zero.
__device__ __forceinline__ float to_tf32(float value) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return __uint_as_float(rounded);
}

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2],
                                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k4_tf32(float (&d)[4], const float (&a)[2], float b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(b)), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], unsigned b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                  const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k8_bf16(float (&d)[4], const unsigned (&a)[2], unsigned b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#else
#include <autotune_host_ptx.h>
#endif

using T = float;  // x, w, bias and y in memory
using Bits = float;  // of an element of x or w
using Word = float;  // of a product
// Problem
constexpr int H = 30, W = 30;
constexpr int K = 12, R = 5, S = 5;
constexpr int P = 26, Q = 26;
constexpr int PAD_H = 0;
constexpr bool WITH_BIAS = false, WITH_RELU = false;

// Parameters
constexpr int ROWS = 11;  // of outputs, a lane
constexpr int BANDS = 1;
constexpr int TILES = 1;  // of a phase
constexpr int STAGING = 3;  // buffers of outputs
constexpr int SLOTS = 2;  // buffers of inputs
constexpr int MIN_BLOCKS = 2;  // blocks resident on a multiprocessor

// Derived
constexpr int WARPS = 3, THREADS = 32 * (WARPS + 2);
constexpr int BAND_P = 26, WINDOW_H = BAND_P + R - 1;
constexpr int PAIRS_Q = Q / 2, PAIRS = 39;  // of columns: of a row, of all groups of ROWS rows
constexpr int SKIPPED = (ROWS - BAND_P % ROWS) % ROWS;  // rows of the last group that the one before has, too
constexpr int PHASES = 3;
constexpr int CHUNKS = 1, UNITS = R * CHUNKS;  // of 8 taps: of a filter row, of a filter
constexpr int UNIT_WORDS = 2;  // a lane's of a unit's filter; of its input as many for each of two pairs
constexpr int FILTER_WORDS = 12;  // a lane's of a tile, in whole vectors
constexpr int ALL_TILES = 3;
constexpr int PITCH = 30, PAIR = 2;  // words of a row of input, of a pair
constexpr int PIECE = 4;  // elements copied at once
constexpr int SLOT_WORDS = 900;
constexpr int RUN_MAPS = 1, PLANE = BAND_P * Q;  // maps whose outputs are contiguous in y
constexpr int RUN_PITCH = 680;  // elements of a run: the next one's are staged in other banks
constexpr int BUFFER = 2720;  // elements

struct alignas(16) Vector {
    Word at[4];
};

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= ALL_TILES * FILTER_WORDS * 32) return;
    const int lane = i / 4 % 32, word = i / 128 * 4 % FILTER_WORDS + i % 4;
    const int row = word / UNIT_WORDS / CHUNKS, chunk = word / UNIT_WORDS % CHUNKS;
    const int sum = i / (32 * FILTER_WORDS) * 8 + lane / 4;
    const int map = sum / 2, column = sum % 2;
    const auto filter = [&](int tap) {
        const int s = chunk * 8 + tap - column;
        const bool there = row < R && map < K && column < 2 && s >= 0 && s < S;
        return there ? w[(map * R + row) * S + s] : Bits{0};
    };
    packed_w[i] = to_tf32(filter(word % 2 * 4 + lane % 4));
}

// First output row of a unit, a band of an image.
__device__ __forceinline__ int first_row(int unit) { return min(unit % BANDS * BAND_P, P - BAND_P); }

// Starts copying a unit's rows of input; zeros stand for rows of padding.
__device__ __forceinline__ void copy_inputs(Word* slot, const Bits* __restrict__ x, int unit) {
    Bits* const to = reinterpret_cast<Bits*>(slot);
    const int row = first_row(unit) - PAD_H;
    const Bits* const from = x + static_cast<long long>(unit / BANDS) * (H * W) + row * W;
    for (int i = static_cast<int>(threadIdx.x % 32) * PIECE; i < WINDOW_H * W; i += 32 * PIECE) {
        copy_async<PIECE * sizeof(Bits)>(to + i, from + i);
    }
}

using Inputs = Word[ROWS + R - 1][CHUNKS][2 * UNIT_WORDS];

// A lane's taps of two pairs that begin at `pairs`. Taps that pad the last unit meet filters that are zero.
__device__ __forceinline__ void load_inputs(Inputs& inputs, const Word* const (&pairs)[2]) {
#pragma unroll
    for (int row = 0; row < ROWS + R - 1; ++row) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
            for (int i = 0; i < 2 * UNIT_WORDS; ++i) {
                const int tap = min(chunk * 8 + i / 2 * 4 + static_cast<int>(threadIdx.x % 4), S);
                inputs[row][chunk][i] = to_tf32(pairs[i % 2][row * PITCH + tap]);
            }
        }
    }
}

// sums = the products of output row `row`.
__device__ __forceinline__ void multiply(float (&sums)[4], const Inputs& inputs, const Word (&filters)[FILTER_WORDS], int row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit) {
        const Word filter[2] = {filters[unit * 2], filters[unit * 2 + 1]};
        mma_m16n8k8_tf32(sums, inputs[row + unit / CHUNKS][unit % CHUNKS], filter, sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_mma_toeplitz(const Bits* __restrict__ x, const Vector* __restrict__ packed_w, const T* __restrict__ bias,
                    T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Barrier* const filled = reinterpret_cast<Barrier*>(smem);  // [slot] its inputs are there
    Barrier* const taken = filled + SLOTS;                     // [slot] all warps have read them
    Barrier* const staged = taken + SLOTS;                     // [buffer] all warps have staged their outputs
    Barrier* const written = staged + STAGING;                 // [buffer] they have been copied out
    Vector* const filters = reinterpret_cast<Vector*>(written + STAGING);               // [tile][vector][lane]
    Word* const slots = reinterpret_cast<Word*>(filters + ALL_TILES * FILTER_WORDS * 8);  // [slot][row][column]
    T* const buffers = reinterpret_cast<T*>(slots + SLOTS * SLOT_WORDS);                // [buffer][map][row][column]

    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int units = n * BANDS, step = static_cast<int>(gridDim.x);
    if (thread == 0) {
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(filled + i, 32);
            barrier_init(taken + i, WARPS);
        }
        for (int i = 0; i < STAGING; ++i) {
            barrier_init(staged + i, WARPS);
            barrier_init(written + i, 1);
        }
        barrier_init_fence();
    }
    for (int i = thread; i < ALL_TILES * FILTER_WORDS * 8; i += THREADS) filters[i] = packed_w[i];
    __syncthreads();

    if (warp == WARPS) {
        int slot = 0, parity = 1;  // nobody has to free a slot before its first use
        int last = -1;             // the slot that copies are on their way to
        for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += step) {
            barrier_wait(taken + slot, parity);
            copy_inputs(slots + slot * SLOT_WORDS, x, unit);
            copy_async_commit();
            if (last >= 0) {
                copy_async_wait<1>();
                barrier_arrive(filled + last);
            }
            last = slot;
            if (++slot == SLOTS) slot = 0, parity ^= 1;
        }
        copy_async_wait<0>();
        if (last >= 0) barrier_arrive(filled + last);
        return;
    }
    if (warp == WARPS + 1) {
        if (lane > 0) return;
        int buffer = 0, parity = 0;
        int last = -1;  // the buffer being copied out
        for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += step) {
            T* const outputs = y + static_cast<long long>(unit / BANDS) * (K * P * Q) + first_row(unit) * (Q);
#pragma unroll 1
            for (int phase = 0; phase < PHASES; ++phase) {
                const T* const from = buffers + buffer * BUFFER;
                barrier_wait(staged + buffer, parity);
                const int first = phase * (4 * TILES), maps = min(4 * TILES, K - first);
                for (int map = 0; map < maps; map += RUN_MAPS) {
                    bulk_store(outputs + (first + map) * (P * Q), from + map / RUN_MAPS * RUN_PITCH,
                               RUN_MAPS * PLANE * static_cast<int>(sizeof(T)));
                }
                bulk_store_commit();
                if (last >= 0) {
                    bulk_store_wait_read<1>();
                    barrier_arrive(written + last);
                }
                last = buffer;
                if (++buffer == STAGING) buffer = 0, parity ^= 1;
            }
        }
        bulk_store_wait_read<0>();
        return;
    }

    // The last group of rows moves up to end with the band, and begins with outputs of the group before.
    const Word* inputs_at[2];
    int output_at[2], skipped[2];  // -1 for nothing; rows
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int pair = warp * 16 + i * 8 + lane / 4, there = min(pair, PAIRS - 1);
        const int group_row = there / PAIRS_Q * ROWS, row = min(group_row, BAND_P - ROWS), column = there % PAIRS_Q;
        inputs_at[i] = slots + row * PITCH + column * PAIR;
        output_at[i] = pair < PAIRS ? row * Q + column * 2 : -1;
        skipped[i] = group_row - row;
    }

    int slot = 0, slot_parity = 0;
    int buffer = 0, buffer_parity = 1;  // nobody has to free a buffer before its first use
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += step) {
        barrier_wait(filled + slot, slot_parity);
        Inputs inputs;
        load_inputs(inputs, {inputs_at[0] + slot * SLOT_WORDS, inputs_at[1] + slot * SLOT_WORDS});
        __syncwarp();
        if (lane == 0) barrier_arrive(taken + slot);
        if (++slot == SLOTS) slot = 0, slot_parity ^= 1;
#pragma unroll 1
        for (int phase = 0; phase < PHASES; ++phase) {
            T* const output = buffers + buffer * BUFFER;
            barrier_wait(written + buffer, buffer_parity);
#pragma unroll 1
            for (int tile = 0; tile < TILES; ++tile) {
                Word filter[FILTER_WORDS];
#pragma unroll
                for (int i = 0; i < FILTER_WORDS; i += 4) {
                    const Vector loaded = filters[((phase * TILES + tile) * (FILTER_WORDS / 4) + i / 4) * 32 + lane];
#pragma unroll
                    for (int j = 0; j < 4; ++j) filter[i + j] = loaded.at[j];
                }
                const int staged_map = tile * 4 + lane % 4, map = phase * (4 * TILES) + staged_map;
                T* const tile_output = output + staged_map / RUN_MAPS * RUN_PITCH + staged_map % RUN_MAPS * PLANE;
                const bool there = K % 4 == 0 || map < K;
#pragma unroll
                for (int row = 0; row < ROWS; ++row) {
                    float sums[4];
                    multiply(sums, inputs, filter, row);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        if (!there || output_at[i] < 0 || row < SKIPPED && row < skipped[i]) continue;
                        const Neighbours<T, 2> pair = {
                            from_float<T>(epilogue<WITH_BIAS, WITH_RELU>(sums[2 * i], bias, map)),
                            from_float<T>(epilogue<WITH_BIAS, WITH_RELU>(sums[2 * i + 1], bias, map)),
                        };
                        *reinterpret_cast<Neighbours<T, 2>*>(tile_output + output_at[i] + row * Q) = pair;
                    }
                }
            }
            fence_bulk();
            __syncwarp();
            if (lane == 0) barrier_arrive(staged + buffer);
            if (++buffer == STAGING) buffer = 0, buffer_parity ^= 1;
        }
    }
}
