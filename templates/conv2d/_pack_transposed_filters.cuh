#pragma once

// Filters of a transposed convolution, w [C, T, R, S, K], as those of the convolution that it is: [K, T, R, S, C], taps in the opposite
// order. Needs T and the family's constants.
extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= K * TAPS * CHANNELS) return;
    const int k = i / CHANNELS / TAPS, tap = i / CHANNELS % TAPS, c = i % CHANNELS;
    packed_w[i] = w[(c * TAPS + TAPS - 1 - tap) * K + k];
}
