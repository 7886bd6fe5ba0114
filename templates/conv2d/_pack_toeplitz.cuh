#pragma once

// Filter rows as words of two neighbouring taps, of which Toeplitz matrices consist. Needs Bits and Word, and the family's constants.

// Word i of a filter row has taps i - 2 and i - 1, as the columns of x lie that they meet: the first and the last have none.
extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= CHANNEL_TILES * TILE_C * R * ROW_WORDS) return;
    const int row = i / ROW_WORDS, word = i % ROW_WORDS;
    const auto tap = [&](int column) {
        const bool there = row < C * R && column >= 0 && column <= SPAN_W && column % DILATION_W == 0;
        return there ? w[row * S + column / DILATION_W] : Bits{0};
    };
    packed_w[i] = word == 0 ? Word{0} : word_of(tap(word - 2), tap(word - 1));
}
