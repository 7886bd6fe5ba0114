#pragma once
#include "_ptx_wgmma.cuh"

// MMAs of a warpgroup with a in registers and b in shared memory.
//
// wgmma_TYPE: d (64 x 8 TILES) = a (64 x 8 words) * b (8 words x 8 TILES) [+ d]. A word is a TF32 or two 16-bit neighbours.
// Warp w of the four holds rows 16 w to 16 w + 15 of a and d, laid out as for mma_m16n8k8_tf32 and its like, tile by tile.
// b lies in shared memory, `offset` bytes behind a pointer, 16-byte aligned, a tile of 8 columns every PITCH words:
// [word / 4][column][word % 4]. With one pointer and constant offsets, operands differ by an addition.

#ifdef __CUDACC__
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
#endif
