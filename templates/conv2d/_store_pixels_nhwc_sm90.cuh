#pragma once

// Outputs of pixels, counted through all images, of y [N, O, P, Q, K]. Needs _epilogue.cuh and the family's constants.

// Stores a lane's outputs of a tile, of the output channels from k on: two neighbours of a pixel at a time.
__device__ __forceinline__ void store(const float (&sums)[BLOCKS][TILE_M / 8][4], float*, float* y, [[maybe_unused]] const float* z, const float* bias,
                                      int tile, int first_pixel, int k, int lane, int n) {
    using Pair = AlignedArray<float, 2>;
#pragma unroll
    for (int row = 0; row < 2 * BLOCKS; ++row) {
        const int pixel = tile * TILE_N + first_pixel + row * 8 + lane / 4;
        if (pixel >= n * (O * P * Q)) break;
        [[maybe_unused]] Pair added[TILE_M / 8] = {};
        if constexpr (EPILOGUE::HAS_RESIDUAL) {  // all are loaded before the first is used
#pragma unroll
            for (int j = 0; j < TILE_M / 8; ++j) {
                const int channel = k + j * 8 + lane % 4 * 2;
                if (channel < K) added[j] = *reinterpret_cast<const Pair*>(z + static_cast<long long>(pixel) * K + channel);
            }
        }
#pragma unroll
        for (int j = 0; j < TILE_M / 8; ++j) {
            const int channel = k + j * 8 + lane % 4 * 2;
            if (channel >= K) break;
            const long long at = static_cast<long long>(pixel) * K + channel;
            Pair outputs;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float channel_bias = EPILOGUE::HAS_BIAS ? bias[channel + i] : 0.0f;
                outputs.at[i] = finished(sums[row / 2][j][row % 2 * 2 + i], channel_bias, added[j].at[i]);
            }
            *reinterpret_cast<Pair*>(y + at) = outputs;
        }
    }
}
