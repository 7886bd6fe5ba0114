#pragma once

// Filters of FOLDED neighbouring rows of outputs, [64][T][R][S][C]: FOLD rows of each, whose taps begin a row of x later than those of the one
// before. R is the rows that all of them meet. w is [K, T, R, S, C], or TRANSPOSED [C, T, R, S, K] with taps in the opposite order.
// Needs T and the family's constants.
extern "C" __global__ void pack_filters(const T* __restrict__ w, T* __restrict__ packed_w) {
    constexpr int FILTER_R = R - FOLDED + 1, FILTER_TAPS = FILTER_D * FILTER_R * S;
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= 64 * TAPS * CHANNELS) return;
    const int c = i % CHANNELS, s = i / CHANNELS % S, t = i / CHANNELS / FRAME_TAPS % FILTER_D;
    const int row = i / CHANNELS / TAPS, k = row % FOLD, r = i / CHANNELS / S % R - row / FOLD, tap = (t * FILTER_R + r) * S + s;
    T filter = from_float<T>(0.0f);
    if (k < K && r >= 0 && r < FILTER_R) filter = TRANSPOSED ? w[(c * FILTER_TAPS + FILTER_TAPS - 1 - tap) * K + k] : w[(k * FILTER_TAPS + tap) * CHANNELS + c];
    packed_w[i] = filter;
}
