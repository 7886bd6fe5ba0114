#pragma once

// Outputs of pixels, counted through all images, of y [N, O, P, Q, K]. Needs _epilogue.cuh and the family's constants.

#include "_ptx_prefetch.cuh"

// Brings the residual of a warp's pixels to L2 while their outputs are multiplied.
__device__ __forceinline__ void prefetch_residual(const float* z, int tile, int first_pixel, int k, int lane, int n) {
    constexpr int LINE = 32, LINES = (TILE_M + LINE - 1) / LINE;
#pragma unroll 1
    for (int i = lane; i < 16 * BLOCKS * LINES; i += 32) {
        const int pixel = tile * TILE_N + first_pixel + i / LINES, channel = k + i % LINES * LINE;
        if (pixel < n * (O * P * Q) && channel < K) prefetch_l2(z + static_cast<long long>(pixel) * K + channel);
    }
}

// Stores a lane's outputs of a tile, of the output channels from k on: two neighbours of a pixel at a time.
__device__ __forceinline__ void store(const float (&sums)[BLOCKS][TILE_M / 8][4], float*, float* y, [[maybe_unused]] const float* z, const float* bias,
                                      int tile, int first_pixel, int k, int lane, int n) {
    using Pair = AlignedArray<float, 2>;
#pragma unroll
    for (int row = 0; row < 2 * BLOCKS; ++row) {
        const int pixel = tile * TILE_N + first_pixel + row * 8 + lane / 4;
        if (pixel >= n * (O * P * Q)) break;
#pragma unroll
        for (int j = 0; j < TILE_M / 8; ++j) {
            const int channel = k + j * 8 + lane % 4 * 2;
            if (channel >= K) break;
            const long long at = static_cast<long long>(pixel) * K + channel;
            Pair added = {}, outputs;
            if constexpr (EPILOGUE::HAS_RESIDUAL) added = *reinterpret_cast<const Pair*>(z + at);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float channel_bias = EPILOGUE::HAS_BIAS ? bias[channel + i] : 0.0f;
                outputs.at[i] = finished(sums[row / 2][j][row % 2 * 2 + i], channel_bias, added.at[i]);
            }
            *reinterpret_cast<Pair*>(y + at) = outputs;
        }
    }
}
