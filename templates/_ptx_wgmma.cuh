#pragma once

// Matrix products of a warpgroup, four warps in a row, as instructions on the GPU (sm_90a) and as plain C++ on the CPU.
//
// wgmma_TYPE: d (64 x 8 TILES) = a (64 x 8 words) * b (8 words x 8 TILES) [+ d]. A word is a TF32 or two 16-bit neighbours.
// Warp w of the four holds rows 16 w to 16 w + 15 of a and d, laid out as for mma_m16n8k8_tf32 and its like, tile by tile.
// b lies in shared memory, `offset` bytes behind a pointer, 16-byte aligned, a tile of 8 columns every PITCH words:
// [word / 4][column][word % 4]. With one pointer and constant offsets, operands differ by an addition.
// MMAs of other shapes are written where they are used, with wgmma_operand. On the CPU wgmma_TYPE_wide computes them: eight columns of
// b are 128 bytes behind the eight before, the second four words `deeper` bytes behind the first; a is a lane's part, or lies in
// shared memory in the same way.
// MMAs are asynchronous: neither d nor a may be touched between wgmma_begin and wgmma_wait, which waits for what was started
// before wgmma_commit; what threads wrote to b must be made visible before: fence_bulk in each of them and a barrier.
// MMAs since the last commit are a group. wgmma_wait_group<N> waits for all groups but the last N: a of the others may then be
// touched, their accumulators only where no MMAs under way add to them. What is put in a is seen after another wgmma_fence.
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
