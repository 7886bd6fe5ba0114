#pragma once

// Filters of NCHW, w [K, C, T, R, S] of a group's channels, as [K, T, R, S, C]; of several groups in 64 output channels with all these groups'
// channels, zeros where they are another group's; of a transposed convolution, w [C, K, T, R, S], as those of the convolution that it is, taps in
// the opposite order. Needs T, first_channel and the family's constants.
extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    constexpr int TAP_C = TAPS * CHANNELS / FILTER_TAPS;  // a tap of patches is a row of the filter
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= K * TAPS * CHANNELS) return;
    const int k = i / (FILTER_TAPS * TAP_C), tap = i / TAP_C % FILTER_TAPS;
    const int c = first_channel(k / 64 * 64) + i % TAP_C - k / GROUP_K * FILTER_C;  // of the group's
    const int filter = TRANSPOSED ? c * K + k : k * FILTER_C + c;
    packed_w[i] = c >= 0 && c < FILTER_C ? w[filter * FILTER_TAPS + (TRANSPOSED ? FILTER_TAPS - 1 - tap : tap)] : from_float<T>(0.0f);
}
