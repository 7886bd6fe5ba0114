#pragma once

// One kernel, whose blocks write the columns that they multiply. Needs unroll_column, gemm, store and the family's constants.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
conv2d_unroll_multiply(Input x, Input w, Output unrolled,
                       Input bias, Output y, int n, int i) {
    extern __shared__ __align__(16) unsigned char smem[];
    Scalar* const tiles = reinterpret_cast<Scalar*>(smem);
    const Chunk chunk = chunk_at(i, n);
    const int column = static_cast<int>(blockIdx.x * TILE + threadIdx.x);
    if (static_cast<int>(blockIdx.x) * TILE >= chunk.columns) return;  // the last chunk may be smaller

    if (threadIdx.y == 0 && column < chunk.columns) unroll_column<C>(x, unrolled, chunk, column, 0);
    __syncthreads();  // the block's columns are written, for its own threads to read

#pragma unroll 1
    for (int first_k = 0; first_k < K; first_k += TILE) {
        const float accumulator = gemm(filters_of(w), unrolled, chunk, first_k, column, tiles);
        store(y, bias, chunk, first_k + static_cast<int>(threadIdx.y), column, accumulator);
    }
}
