#pragma once

// Operands of a warp's MMAs, of TF32, out of rows of shared memory that are their depth, PITCH elements apart.
constexpr int MMA_PIXELS = 8;  // depth of an MMA

// Operand a: 16 columns.
template <int PITCH>
__device__ __forceinline__ void load_a(Word (&a)[4], const Bits* rows) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = rounded(rows[(lane % 4 + i / 2 * 4) * PITCH + lane / 4 + i % 2 * 8]);
}

// Operands b of two MMAs: eight columns each.
template <int PITCH>
__device__ __forceinline__ void load_b(Word (&b)[2][2], const Bits* rows) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = rounded(rows[(lane % 4 + i % 2 * 4) * PITCH + lane / 4 + i / 2 * 8]);
}
