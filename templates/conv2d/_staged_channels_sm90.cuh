#pragma once

// Outputs of a warpgroup in shared memory, of STAGED_K output channels at a time. Needs _sm90.cuh and the family's constants.

// Stages a lane's sums of the output channels from `first` on: `staged` is of warpgroup `group`, and pixel_of(row) the group's pixel in a row of the
// lane's MMAs.
template <class Pixel>
__device__ __forceinline__ void stage_channels(const float (&sums)[BLOCKS][TILE_M / 8][4], float* staged, int group, int first, int lane,
                                               const Pixel& pixel_of) {
    sync_threads<128>(1 + group);  // what was staged before has been stored
#pragma unroll
    for (int i = 0; i < STAGED_K / 4; ++i) {
        const int channel = i / 2 * 8 + lane % 4 * 2 + i % 2;
#pragma unroll
        for (int row = 0; row < 2 * BLOCKS; ++row) {
            staged[channel * STAGED_PITCH + pixel_of(row)] = sums[row / 2][first / 8 + i / 2][row % 2 * 2 + i % 2];
        }
    }
    sync_threads<128>(1 + group);
}
