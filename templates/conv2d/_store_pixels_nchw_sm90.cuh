#pragma once

// Outputs of pixels, counted through all images, of y [N, K, O, P, Q]: through shared memory. Needs _epilogue.cuh and the family's constants.

#include "_epilogue_nchw_sm90.cuh"

#include "_staged_channels_sm90.cuh"

// Stores a tile's outputs, of the output channels from k on, STAGED_K channels at a time: the runs of a channel that are of one image.
__device__ __forceinline__ void store(const float (&sums)[BLOCKS][TILE_M / 8][4], float* staged, float* y, const float* z, const float* bias, int tile,
                                      int first_pixel, int k, int lane, int n) {
    constexpr int GROUP_PIXELS = 64 * BLOCKS, PLANE = O * P * Q;
    const int group = first_pixel / GROUP_PIXELS, in_group = first_pixel % GROUP_PIXELS, warp = in_group / (16 * BLOCKS);
    const int begin = tile * TILE_N + group * GROUP_PIXELS, end = min(begin + GROUP_PIXELS, n * PLANE);
    staged += group * (STAGED_K * STAGED_PITCH);
#pragma unroll
    for (int first = 0; first < TILE_M; first += STAGED_K) {
        stage_channels(sums, staged, group, first, lane, [&](int row) { return in_group + row * 8 + lane / 4; });
#pragma unroll 1
        for (int channel = warp; channel < STAGED_K && k + first + channel < K; channel += 4) {
            const float channel_bias = EPILOGUE::HAS_BIAS ? bias[k + first + channel] : 0.0f;
#pragma unroll 1
            for (int pixel = begin, count; pixel < end; pixel += count) {
                const int in_plane = pixel % PLANE;
                count = min(end - pixel, PLANE - in_plane);
                const long long at = (pixel / PLANE * static_cast<long long>(K) + k + first + channel) * PLANE + in_plane;
                const float* const row = staged + channel * STAGED_PITCH + (pixel - begin);
                CollectiveEpilogueNchw<EPILOGUE, K, PLANE, GROUP_PIXELS>::template store_line<GROUP_PIXELS>(y, z, channel_bias, at, count, lane, [&](int i) { return row[i]; });
            }
        }
    }
}
