// conv2d n2 c3 9x11 k5 3x3 f32 nchw
// mma_pair precision=tf32 neighbours=2 rows=5 columns=1 quads=1 batch=2 bands=1 teams=2 sharing=1 slots=4 staging=3 lookahead=1 min_blocks=1

// Convolution as matrix products of four warps, on tensor cores: [64 pairs of output columns x taps] * [taps x sums].
// A pair is the columns q and q + 1 of a row, q even; the sums are those of both columns, of all maps. With the filter of a row
// moved on by one tap for the second column, both take the same taps q to q + S of x, which lie there as a product takes them.
// Depth is four channels by two words: taps.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as products take them: [pass][step][tile][half][sum][channel]
//   bias      [K]           not read without WITH_BIAS
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// A block takes whole images, or BANDS bands of their rows, gridDim.x apart, and its teams of four warps take them in turn,
// SHARING teams each, which take its rounds in turn.
// A lane loads a row of its strip's inputs once, for all output rows that need it. Outputs are staged in one of STAGING buffers
// and leave as runs of rows, one for each map.
//
//   team  64 strips at once, of ROWS rows and COLUMNS times NEIGHBOURS columns each
//   lane  strips lane / 4 and lane / 4 + 8 of its warp's 16;  channel lane % 4 of a quad;  sums 2 (lane % 4) and the next of a tile
//   supply  a warp more copies outputs, three inputs

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

// Matrix products of a warpgroup, four warps in a row, as instructions on the GPU (sm_90a) and as plain C++ on the CPU.
//
// wgmma_TYPE: d (64 x 8 TILES) = a (64 x 8 words) * b (8 words x 8 TILES) [+ d]. A word is a TF32 or two 16-bit neighbours.
// Warp w of the four holds rows 16 w to 16 w + 15 of a and d, laid out as for mma_m16n8k8_tf32 and its like, tile by tile.
// b lies in shared memory, `offset` bytes behind a pointer, 16-byte aligned, a tile of 8 columns every PITCH words:
// [word / 4][column][word % 4]. With one pointer and constant offsets, operands differ by an addition.
// Products of other shapes are written where they are used, with wgmma_operand. On the CPU wgmma_TYPE_wide computes them: eight columns of
// b are 128 bytes behind the eight before, the second four words `deeper` bytes behind the first; a is a lane's part, or lies in
// shared memory in the same way.
// Products are asynchronous: neither d nor a may be touched between wgmma_begin and wgmma_wait, which waits for what was started
// before wgmma_commit; what threads wrote to b must be made visible before: fence_bulk in each of them and a barrier.
// Products since the last commit are a group. wgmma_wait_but<N> waits for all groups but the last N: a of the others may then be
// touched, their sums only where no products under way add to them. What is put in a is seen after another wgmma_fence.
// decrease_registers, increase_registers: registers a thread has from here on, by all warps of a warpgroup, a multiple of 8.

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
__device__ __forceinline__ void wgmma_wait_but() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_wait(float (&d)[COLUMNS][TILES][4]) {
    wgmma_wait_but<0>();
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
__device__ __forceinline__ void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#define WGMMA_TILE(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_INPUTS "r"(wgmma_word(a[0])), "r"(wgmma_word(a[1])), "r"(wgmma_word(a[2])), "r"(wgmma_word(a[3])), "l"(operand), "n"(ADDED)

#define WGMMA(NAME, WORD, SHAPE, TYPE, TRANSPOSED)                                                                         \
    template <bool ADDED, int PITCH, int TILES>                                                                            \
    __device__ __forceinline__ void NAME(float (&d)[TILES][4], const WORD (&a)[4], const void* b, int offset = 0) {        \
        const unsigned long long operand = wgmma_operand(b, offset, 128, PITCH * 4);                                       \
        if constexpr (TILES == 1) {                                                                                        \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8" SHAPE ".f32." TYPE      \
                         " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1" TRANSPOSED ";}"                                \
                         : WGMMA_TILE(0)                                                                                   \
                         : WGMMA_INPUTS);                                                                                  \
        } else if constexpr (TILES == 2) {                                                                                 \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16" SHAPE ".f32." TYPE    \
                         " {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1" TRANSPOSED ";}"             \
                         : WGMMA_TILE(0), WGMMA_TILE(1)                                                                    \
                         : WGMMA_INPUTS);                                                                                  \
        } else if constexpr (TILES == 3) {                                                                                 \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %17, 0; wgmma.mma_async.sync.aligned.m64n24" SHAPE ".f32." TYPE    \
                         " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, %16, p, 1, 1"         \
                         TRANSPOSED ";}"                                                                                   \
                         : WGMMA_TILE(0), WGMMA_TILE(1), WGMMA_TILE(2)                                                     \
                         : WGMMA_INPUTS);                                                                                  \
        } else if constexpr (TILES == 4) {                                                                                 \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32" SHAPE ".f32." TYPE    \
                         " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, " \
                         "%20, p, 1, 1" TRANSPOSED ";}"                                                                    \
                         : WGMMA_TILE(0), WGMMA_TILE(1), WGMMA_TILE(2), WGMMA_TILE(3)                                      \
                         : WGMMA_INPUTS);                                                                                  \
        } else {                                                                                                           \
            static_assert(TILES == 6, "1, 2, 3, 4 or 6 tiles");                                                            \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %29, 0; wgmma.mma_async.sync.aligned.m64n48" SHAPE ".f32." TYPE    \
                         " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "    \
                         "%20, %21, %22, %23}, {%24, %25, %26, %27}, %28, p, 1, 1" TRANSPOSED ";}"                         \
                         : WGMMA_TILE(0), WGMMA_TILE(1), WGMMA_TILE(2), WGMMA_TILE(3), WGMMA_TILE(4), WGMMA_TILE(5)        \
                         : WGMMA_INPUTS);                                                                                  \
        }                                                                                                                  \
    }
WGMMA(wgmma_tf32, float, "k8", "tf32.tf32", "")
WGMMA(wgmma_f16, unsigned, "k16", "f16.f16", ", 0")
WGMMA(wgmma_bf16, unsigned, "k16", "bf16.bf16", ", 0")
#undef WGMMA
#undef WGMMA_INPUTS
#undef WGMMA_TILE
#else
#include <autotune_host_ptx.h>
#endif

using T = float;  // x, w, bias and y in memory
using Bits = float;  // of an element of x or w
using Word = float;  // of a product
// Problem
constexpr int C = 3, H = 9, W = 11;
constexpr int K = 5, R = 3, S = 3;
constexpr int P = 7, Q = 9;
constexpr bool WITH_BIAS = false, WITH_RELU = false;

// Parameters
constexpr int NEIGHBOURS = 2;  // output columns that share a product
constexpr int ROWS = 5, COLUMNS = 1;  // of a lane; times NEIGHBOURS
constexpr int QUADS = 1;  // of channels, loaded together
constexpr int BATCH = 2;  // rows of inputs
constexpr int TEAMS = 2;
constexpr int SHARING = 1;  // teams that compute a unit together
constexpr int BANDS = 1;
constexpr int SLOTS = 4;  // buffers of inputs
constexpr int STAGING = 3;  // buffers of outputs
constexpr int MIN_BLOCKS = 1;  // blocks resident on a multiprocessor

// Derived
constexpr int THREADS = 128 * (TEAMS + 1);
constexpr int BAND_P = 7, WINDOW_H = BAND_P + R - 1;
constexpr int STRIPS_Q = 5, ROW_GROUPS = 2;  // of a row; of rows
constexpr int STRIPS = 16, EIGHTS = 1;  // of a band; eights of a row
constexpr int ROUNDS = 1;
constexpr int CREWS = 2;  // of SHARING teams
constexpr int SKIPPED = (ROWS - BAND_P % ROWS) % ROWS;  // rows of the last strips that those before have, too
constexpr int PASSES = 1;  // over groups of QUADS
constexpr int WORD_TAPS = 1;  // elements of a word
constexpr int WORDS = 4;  // of a filter row
constexpr int COLUMN_WORDS = 2;  // from column to column of a lane
constexpr int WINDOW = 4;  // words of a lane's row
constexpr int HALVES = 4, FULL = HALVES / 2;  // of a filter row: half steps, steps
constexpr int APART = 1;  // half steps of a step
constexpr int STEPS = 6;
constexpr int TILES = 3;  // of 8 sums
constexpr int PARTS = 1;  // of a filter: rounded to the nearest TF32
constexpr int STEP_FILTERS = TILES * PARTS * 64;  // words
constexpr int FILTER_WORDS = 1152;
constexpr int PLANE = 112, SKEW = 1, SLOT = 452;  // words
constexpr int MAP_STEP = 1;
constexpr int COPIERS = 3;  // warps that copy inputs
constexpr int RUN = BAND_P * Q;  // outputs of a map
constexpr int VECTOR = 4;  // elements of 16 bytes
constexpr int MAP = 68;  // elements from map to map of staged outputs
constexpr int BUFFER = 340;  // elements

// The map of a sum of a tile. Lanes' maps are MAP_STEP apart.
__device__ __forceinline__ constexpr int map_of(int tile, int sum) {
    const int map = NEIGHBOURS == 2 ? sum / 2 : sum % 2 * 4 + sum / 2;
    return tile / MAP_STEP * (8 / NEIGHBOURS * MAP_STEP) + map * MAP_STEP + tile % MAP_STEP;
}

extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= FILTER_WORDS) return;
    const int tile = i / (64 * PARTS) % TILES, step = i / STEP_FILTERS % STEPS, pass = i / (STEP_FILTERS * STEPS);
    const int column = i / 4 % NEIGHBOURS, map = map_of(tile, i / 4 % 8);
    // The last steps are of two filter rows, where a row's half steps are odd in number.
    const bool last = step >= R * FULL;
    const int row = last ? (step - R * FULL) * 2 + i / 32 % 2 : step / FULL;
    const int half = last ? HALVES - 1 : step % FULL / APART * (2 * APART) + step % APART + i / 32 % 2 * APART;
    const int channel = (pass * QUADS + half / WORDS) * 4 + i % 4;
    const auto filter = [&](int tap) {
        const int s = tap - column;
        const bool there = row < R && map < K && channel < C && s >= 0 && s < S;
        return there ? w[((map * C + channel) * R + row) * S + s] : Bits{0};
    };
    packed_w[i] = to_tf32(filter(half % WORDS));
}

// First output row of a unit, a band of an image.
__device__ __forceinline__ int first_row(int unit) { return min(unit % BANDS * BAND_P, P - BAND_P); }

// Where a unit's rows of a channel begin in x; where those of a map do in y.
__device__ __forceinline__ long long input_at(int unit, int channel) {
    return static_cast<long long>(unit / BANDS) * (C * H * W) + (channel * H + first_row(unit)) * W;
}
__device__ __forceinline__ long long output_at(int unit, int map) {
    return static_cast<long long>(unit / BANDS) * (K * P * Q) + (map * P + first_row(unit)) * Q;
}
// Where a channel's rows lie in a slot, words.
__device__ __forceinline__ constexpr int plane_at(int channel) { return channel * PLANE + channel % 4 / 2 * SKEW; }
// What copies a block's inputs: COPIERS warps, a plane a warp, in words from the one that has its first element.
__device__ __forceinline__ void copy_inputs(Word* slots, Barrier* filled, Barrier* taken, const Bits* __restrict__ x, int units,
                                            int warp, int n) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int slot = 0, parity = 1;  // nobody has to free a slot before its first use
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
        barrier_wait(taken + slot, parity);
#pragma unroll 1
        for (int channel = warp; channel < C; channel += COPIERS) {
            const long long begin = input_at(unit, channel) / WORD_TAPS * WORD_TAPS;
            const Bits* const from = x + begin;
            Word* const to = slots + slot * SLOT + plane_at(channel);
#pragma unroll 8
            for (int i = lane; i < WINDOW_H * W; i += 32) copy_async<4>(to + i, from + i);
        }
        copy_async_arrive(filled + slot);
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
}
// Elements between an address and the 16-byte boundary before it. What is staged lies like its place in memory.
__device__ __forceinline__ int behind_vector(const T* at) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(at) % 16 / sizeof(T));
}

// What copies its outputs: a warp.
__device__ __forceinline__ void copy_outputs(const T* buffers, Barrier* staged, Barrier* written, T* __restrict__ y, int units) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int buffer = 0, parity = 0;
    int last = -1;  // the buffer being copied
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
        const T* const from = buffers + buffer * BUFFER;
        barrier_wait(staged + buffer, parity);
        for (int map = lane; map < K; map += 32) {
            T* const run = y + output_at(unit, map);
            const int before = behind_vector(run), head = (VECTOR - before) % VECTOR, vectors = (RUN - head) / VECTOR;
            if (RUN >= 2 * VECTOR || vectors > 0) bulk_store(run + head, from + map * MAP + before + head, 16 * vectors);
        }
        bulk_store_commit();
        // What whole vectors leave of a run at its beginning and its end.
        constexpr int EDGES = 2 * (VECTOR - 1);
        for (int i = lane; i < K * EDGES; i += 32) {
            T* const run = y + output_at(unit, i / EDGES);
            const int before = behind_vector(run), head = min((VECTOR - before) % VECTOR, RUN), rest = (RUN - head) % VECTOR;
            const int edge = i % EDGES, at = edge < VECTOR - 1 ? edge : RUN - 1 - (edge - (VECTOR - 1));
            if (edge < VECTOR - 1 ? edge < head : edge - (VECTOR - 1) < rest) run[at] = from[i / EDGES * MAP + before + at];
        }
        if (STAGING == 1) {
            bulk_store_wait_read<0>();
            __syncwarp();
            if (lane == 0) barrier_arrive(written + buffer);
        } else if (last >= 0) {
            bulk_store_wait_read<1>();
            __syncwarp();
            if (lane == 0) barrier_arrive(written + last);
        }
        last = buffer;
        if (++buffer == STAGING) buffer = 0, parity ^= 1;
    }
    bulk_store_wait_read<0>();
}

// A lane's inputs of a row, words of two strips.
struct Inputs {
    Word of[PARTS][QUADS][WINDOW][2];

    // Of the strips that begin at `strips`, in a quad's first channel.
    __device__ __forceinline__ void load(const Word* const (&strips)[2], int row) {
#pragma unroll
        for (int quad = 0; quad < QUADS; ++quad) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int word = 0; word < WINDOW; word += 1) {
                    const Word* const at = strips[i] + quad * (4 * PLANE) + row * (W / WORD_TAPS) + word;
                    const auto loaded = *reinterpret_cast<const Neighbours<Word, 1>*>(at);
#pragma unroll
                    for (int j = 0; j < 1 && word + j < WINDOW; ++j) {
                        of[0][quad][word + j][i] = to_tf32(loaded.at[j]);
                    }
                }
            }
        }
    }

    // Of a half step, for one of a lane's columns.
    __device__ __forceinline__ const Word (&half_step(int part, int half, int column) const)[2] {
        return of[part][half / WORDS][column * COLUMN_WORDS + half % WORDS];
    }
};

// A strip's place among the strips of a band: eights of each row, then what is left of all rows, column by column.
struct Place {
    int row, column;

    __device__ __forceinline__ explicit Place(int strip) {
        const int rest = strip - ROW_GROUPS * EIGHTS * 8;
        if (EIGHTS == 0 || rest >= 0) {
            row = rest % ROW_GROUPS;
            column = EIGHTS * 8 + rest / ROW_GROUPS;
        } else {
            row = strip / (EIGHTS > 0 ? EIGHTS * 8 : 1);
            column = strip % (EIGHTS > 0 ? EIGHTS * 8 : 1);
        }
    }
};

using Sums = float[ROWS * COLUMNS][TILES][4];

// Starts d = pixels * filters (+ d), of two half steps; their filters begin `words` behind `filters`.
template <bool ADDED = true>
__device__ __forceinline__ void multiply(float (&d)[TILES][4], const Word (&first)[2], const Word (&second)[2], const Word* filters,
                                         int words) {
    const Word pixels[4] = {first[0], first[1], second[0], second[1]};
    wgmma_tf32<ADDED, 64 * PARTS>(d, pixels, filters, words * static_cast<int>(sizeof(Word)));
}

constexpr int ROWS_IN = ROWS + R - 1, LAST_BATCH = (ROWS_IN - 1) / BATCH * BATCH;  // of a lane's inputs
constexpr int LAST_LOADED = LAST_BATCH > BATCH ? LAST_BATCH - BATCH : 0;  // the batch when the last one is loaded

// Of BATCH rows, and of as many before them or behind.
using Batches = Inputs[2 * BATCH];

// Loads the batch that begins with row `first`.
__device__ __forceinline__ void load_batch(Batches& inputs, const Word* const (&strips)[2], int first) {
#pragma unroll
    for (int row = first; row < min(first + BATCH, ROWS_IN); ++row) inputs[row % (2 * BATCH)].load(strips, row);
}

// Starts sums += the products that take the batch of rows that begins with `first`.
__device__ __forceinline__ void multiply_batch(Sums& sums, const Batches& inputs, const Word* filters, int first) {
    constexpr int PRODUCTS[1][2] = {};  // parts of pixels, of filters
#pragma unroll
    for (const auto& part : PRODUCTS) {
#pragma unroll
        for (int row = first; row < min(first + BATCH, ROWS_IN); ++row) {
            const Inputs& now = inputs[row % (2 * BATCH)];
#pragma unroll
            for (int step = 0; step < FULL; ++step) {
                const int half = step / APART * (2 * APART) + step % APART;
#pragma unroll
                for (int output = max(0, row - R + 1); output <= min(row, ROWS - 1); ++output) {
#pragma unroll
                    for (int column = 0; column < COLUMNS; ++column) {
                        const auto& one = now.half_step(part[0], half, column);
                        const auto& two = now.half_step(part[0], half + APART, column);
                        const int words = ((row - output) * FULL + step) * STEP_FILTERS + part[1] * 64;
                        multiply(sums[output * COLUMNS + column], one, two, filters, words);
                    }
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_mma_pair(const Bits* __restrict__ x, const Word* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    Barrier* const filled = reinterpret_cast<Barrier*>(smem);  // [slot] its inputs are there
    Barrier* const taken = filled + SLOTS;                     // [slot] its teams have read them
    Barrier* const staged = taken + SLOTS;                     // [buffer] its teams have staged their outputs
    Barrier* const written = staged + STAGING;                 // [buffer] they have been copied out
    Barrier* const packed = written + STAGING;                 // filters are there
    Word* const filters = reinterpret_cast<Word*>(smem + 128);
    Word* const slots = filters + FILTER_WORDS;                           // [slot][channel][row][column]
    T* const buffers = reinterpret_cast<T*>(slots + SLOTS * SLOT);        // [buffer][map][row][column]

    // The same for a warp's lanes, and seen to be: the operands of wgmma then need uniform registers only.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
    const int team = warp / 4;
    const int units = n * BANDS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(filled + i, 32 * COPIERS);
            barrier_init(taken + i, 4 * SHARING);
        }
        for (int i = 0; i < STAGING; ++i) {
            barrier_init(staged + i, 4 * SHARING);
            barrier_init(written + i, 1);
        }
        barrier_init(packed, 1);
        barrier_init_fence();
        barrier_arrive_expect(packed, 4 * FILTER_WORDS);
        bulk_load(filters, packed_w, 4 * FILTER_WORDS, packed);
    }
    for (int i = static_cast<int>(threadIdx.x); i < SLOTS * SLOT; i += THREADS) slots[i] = Word{0};  // what lies behind planes
    fence_bulk();
    __syncthreads();

    if (team == TEAMS) {
        decrease_registers<56>();
        if (warp == 4 * TEAMS) copy_outputs(buffers, staged, written, y, units);
        if (warp > 4 * TEAMS) copy_inputs(slots, filled, taken, x, units, warp - 4 * TEAMS - 1, n);
        return;
    }
    increase_registers<224>();
    barrier_wait(packed, 0);

    const int step = CREWS * static_cast<int>(gridDim.x), first_round = team % SHARING;
    int turn = team / SHARING;  // of the block's units
    for (int unit = static_cast<int>(blockIdx.x) + turn * static_cast<int>(gridDim.x); unit < units; unit += step, turn += CREWS) {
        const int slot = turn % SLOTS, buffer = turn % STAGING;
        T* const output = buffers + buffer * BUFFER;
        barrier_wait(filled + slot, turn / SLOTS % 2);
#pragma unroll 1
        for (int round = first_round; round < ROUNDS; round += SHARING) {
            const Word* inputs_at[2];
            int row_at[2], column_at[2], skipped[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int strip = round * 64 + warp % 4 * 16 + i * 8 + lane / 4, there = min(strip, STRIPS - 1);
                const Place place(there);
                const int strip_row = place.row * ROWS, strip_column = min(place.column, STRIPS_Q - 1) * (COLUMNS * NEIGHBOURS);
                row_at[i] = min(strip_row, BAND_P - ROWS);
                column_at[i] = strip < STRIPS && place.column < STRIPS_Q ? strip_column : Q;
                skipped[i] = strip_row - row_at[i];
                const int at = row_at[i] * W + strip_column;
                inputs_at[i] = slots + slot * SLOT + plane_at(lane % 4) + at;
            }
            Sums sums;
#pragma unroll
            for (int i = 0; i < ROWS * COLUMNS; ++i) {
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) sums[i][tile][j] = 0.0f;
                }
            }
            const Word* pass_filters = filters;
#pragma unroll 1
            for (int pass = 0; pass < PASSES; ++pass) {
                const Word* strips[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) strips[i] = inputs_at[i] + pass * (QUADS * 4 * PLANE);
                const auto release_inputs = [&] {
                    if (round + SHARING < ROUNDS || pass + 1 < PASSES) return;
                    fence_bulk();  // the next copy into the slot comes after these loads
                    __syncwarp();
                    if (lane == 0) barrier_arrive(taken + slot);
                };
                Batches inputs;
                load_batch(inputs, strips, 0);
#pragma unroll
                for (int row = 0; row < ROWS_IN; row += BATCH) {
                    wgmma_begin(sums);
                    multiply_batch(sums, inputs, pass_filters, row);
                    wgmma_commit();
                    load_batch(inputs, strips, row + BATCH);
                    if (row == LAST_LOADED) release_inputs();
                    wgmma_wait(sums);
                }
                pass_filters += STEPS * STEP_FILTERS;
            }
            if (round == first_round) barrier_wait(written + buffer, turn / STAGING % 2 ^ 1);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int sum = 0; sum < 2; sum += NEIGHBOURS) {
                    const int map = map_of(tile, lane % 4 * 2 + sum);
                    if (NEIGHBOURS * K < 8 * TILES && map >= K) continue;
                    T* const run = output + map * MAP + behind_vector(y + output_at(unit, map));
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
#pragma unroll
                        for (int row = 0; row < ROWS; ++row) {
                            if (row < SKIPPED && row < skipped[i]) continue;
                            T* const stored = run + (row_at[i] + row) * Q + column_at[i];
#pragma unroll
                            for (int column = 0; column < COLUMNS; ++column) {
                                const float* const sums_at = sums[row * COLUMNS + column][tile] + 2 * i + sum;
                                const int at = column * NEIGHBOURS, left = Q - column_at[i] - at;
#pragma unroll
                                for (int j = 0; j < NEIGHBOURS; ++j) {
                                    if (j < left) stored[at + j] = from_float<T>(epilogue<WITH_BIAS, WITH_RELU>(sums_at[j], bias, map));
                                }
                            }
                        }
                    }
                }
            }
        }
        fence_bulk();
        __syncwarp();
        if (lane == 0) barrier_arrive(staged + buffer);
    }
}
