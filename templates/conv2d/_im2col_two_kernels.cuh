#pragma once

// Two kernels, one that writes im2col(x) and one that multiplies. Needs unroll_column, gemm, store and the family's constants.
extern "C" __global__ void __launch_bounds__(UNROLL_BLOCK)
conv2d_unroll(Input x, Output unrolled, int n, int i) {
    const Chunk chunk = chunk_at(i, n);
    const int column = static_cast<int>(blockIdx.x * UNROLL_BLOCK + threadIdx.x);
    if (column < chunk.columns) unroll_column<THREAD_C>(x, unrolled, chunk, column, static_cast<int>(blockIdx.y) * THREAD_C);
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
conv2d_multiply(Input w, Input unrolled, Input bias,
                Output y, int n, int i) {
    extern __shared__ __align__(16) unsigned char smem[];
    Scalar* const tiles = reinterpret_cast<Scalar*>(smem);
    const Chunk chunk = chunk_at(i, n);
    const int column = static_cast<int>(blockIdx.x * TILE + threadIdx.x);
    const int first_k = static_cast<int>(blockIdx.y) * TILE;
    if (static_cast<int>(blockIdx.x) * TILE >= chunk.columns) return;  // the last chunk may be smaller
    const float accumulator = gemm(filters_of(w), unrolled, chunk, first_k, column, tiles);
    store(y, bias, chunk, first_k + static_cast<int>(threadIdx.y), column, accumulator);
}
