#pragma once

// Operands of a warp's MMAs, of 16-bit elements, out of rows of shared memory that are their depth, PITCH elements apart.
constexpr int MMA_PIXELS = 16;  // depth of an MMA

// Operand a: 16 columns.
template <int PITCH>
__device__ __forceinline__ void load_a(Word (&a)[4], const Bits* rows) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices_trans(a, rows + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8);
}

// Operands b of two MMAs: eight columns each.
template <int PITCH>
__device__ __forceinline__ void load_b(Word (&b)[2][2], const Bits* rows) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    Word words[4];
    load_matrices_trans(words, rows + lane % 16 * PITCH + lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = words[i];
}
