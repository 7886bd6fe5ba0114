#pragma once
#include "_prologue.cuh"

// The prologue of a window of x in shared memory, whose chunks are channels of a pixel. Needs Line, ROW_COPIES and the family's constants.

// Applies it to what a work tile needs of x, a slice of the channels; padding stays zero.
__device__ __forceinline__ void prepare_inputs(Chunk* staged, const T* __restrict__ scale, [[maybe_unused]] const T* __restrict__ shift,
                                               unsigned work_tile, int slice, int n) {
    using Elements = AlignedArray<T, CHUNK_TAPS>;
    const WorkTile from(work_tile);
    const int first_row = from.row * STRIDE_H - PAD_H, first_column = from.column * STRIDE_W - PAD_W;
    constexpr int COUNT = IMAGES * WINDOW_H * ROW_COPIES, AT_ONCE = 2;  // chunks; loads do not pass stores of earlier ones
    for (int begin = static_cast<int>(threadIdx.x); begin < COUNT; begin += AT_ONCE * THREADS) {
        Elements inputs[AT_ONCE], factors[AT_ONCE], terms[AT_ONCE];
        Elements* to[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int place = begin + i * THREADS, row = place / ROW_COPIES % WINDOW_H, image = place / (WINDOW_H * ROW_COPIES);
            const Line line(place % ROW_COPIES, first_column, slice);
            bool inside = place < COUNT && line.inside(0) && (IMAGES == 1 || from.image + image < n);
            if constexpr (PADDED_H) inside = inside && static_cast<unsigned>(first_row + row) < static_cast<unsigned>(H);
            to[i] = inside ? reinterpret_cast<Elements*>(staged + (image * WINDOW_H + row) * ROW_CHUNKS + line.staged()) : nullptr;
            if (!inside) continue;
            const int at = (from.image + image) * (C / CHUNK_TAPS) + line.channel / CHUNK_TAPS;
            inputs[i] = *to[i];
            factors[i] = reinterpret_cast<const Elements*>(scale)[at];
            if constexpr (PROLOGUE::HAS_SHIFT) terms[i] = reinterpret_cast<const Elements*>(shift)[at];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (to[i] == nullptr) continue;
            PROLOGUE::apply(inputs[i], factors[i], terms[i]);
            *to[i] = inputs[i];
        }
    }
}
