#pragma once

// Accumulators of MMAs in a lane's registers: of COLUMNS operands, TILES tiles of an MMA each.

template <int COLUMNS, int TILES>
__device__ __forceinline__ void clear(float (&d)[COLUMNS][TILES][4]) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int l = 0; l < 4; ++l) d[j][tile][l] = 0.0f;
        }
    }
}

// Adds in float what tensor cores summed up, which cut off what does not fit.
template <int TILES>
__device__ __forceinline__ void promote(float (&d)[TILES][4], const float (&sums)[TILES][4]) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int l = 0; l < 4; ++l) d[tile][l] += sums[tile][l];
    }
}

template <int COLUMNS, int TILES>
__device__ __forceinline__ void promote_columns(float (&d)[COLUMNS][TILES][4], const float (&sums)[COLUMNS][TILES][4]) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) promote(d[j], sums[j]);
}
