#pragma once

// Filters of 64 output channels of several groups: of all these groups' channels, zeros where they are another group's. Needs T,
// first_channel and the family's constants.
extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= K * TAPS * CHANNELS) return;
    const int k = i / CHANNELS / TAPS;
    const int c = first_channel(k / 64 * 64) + i % CHANNELS - k / GROUP_K * GROUP_C;
    packed_w[i] = c >= 0 && c < GROUP_C ? w[i / CHANNELS * GROUP_C + c] : from_float<T>(0.0f);
}
