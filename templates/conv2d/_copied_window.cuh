#pragma once
#include "_input_image.cuh"

// Windows of x to shared memory, chunk by chunk: asynchronously, or through registers where an element is all that lies on a multiple of its
// size. Needs _ptx.cuh, Line, ROW_COPIES and the family's constants.

// What a thread would load to registers before: nothing.
struct Fetched {
    static constexpr bool USED = false;
    __device__ __forceinline__ void load(const Bits*, unsigned, int, int) {}
    __device__ __forceinline__ void stage(Chunk*) const {}
};

// Copies what a work tile needs of x, a slice of the channels of a frame; zeros stand for padding. CachedFrames may be in front of x.
template <class... Cached>
__device__ __forceinline__ void copy_inputs(Chunk* staged, const Bits* __restrict__ x, unsigned work_tile, int slice, int n, const Cached&... cached) {
    // A thread copies chunks of every ROW_STEP-th row, at the same place in each.
    constexpr int ITERATIONS = (ROW_COPIES + THREADS - 1) / THREADS, ROW_STEP = ITERATIONS > 1 ? 1 : THREADS / ROW_COPIES;
    const int thread = static_cast<int>(threadIdx.x), thread_row = ITERATIONS > 1 ? 0 : thread / ROW_COPIES;
    if (thread_row >= ROW_STEP) return;
    const WorkTile from(work_tile);
    const int first_row = from.row * STRIDE_H - PAD_H + thread_row, first_column = from.column * STRIDE_W - PAD_W;
    int first_image = input_image(from.image, slice / CHANNEL_SLICES);
    ((x = cached.look_up(x, first_image, from.image, slice / CHANNEL_SLICES)), ...);
    staged += thread_row * ROW_CHUNKS;
    x += (static_cast<long long>(first_image) * H + first_row) * (W * C) + first_column * C;
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        const int in_line = ITERATIONS > 1 ? thread + iteration * THREADS : thread % ROW_COPIES;
        if (ITERATIONS > 1 && in_line >= ROW_COPIES) continue;
        const Line line(in_line, first_column, slice % CHANNEL_SLICES);
        Chunk* const line_to = staged + line.staged();
        const Bits* const line_from = x + line.element();
        for (int image = 0; image < IMAGES; ++image) {
#pragma unroll COPY_ELEMENTS == 1 ? 4 : 16
            for (int step = 0; step < WINDOW_H; step += ROW_STEP) {
                if (step + ROW_STEP > WINDOW_H && thread_row + step >= WINDOW_H) break;
                bool there = DEEP ? first_image >= 0 : IMAGES == 1 || from.image + image < n;
                if constexpr (PADDED_H) there = there && static_cast<unsigned>(first_row + step) < static_cast<unsigned>(H);
                Chunk* const to = line_to + (image * WINDOW_H + step) * ROW_CHUNKS;
                const Bits* const chunk = line_from + (image * H + step) * (W * C);
                if constexpr (COPY_ELEMENTS == 1) {
                    Bits copied[CHUNK_TAPS];
#pragma unroll
                    for (int element = 0; element < CHUNK_TAPS; ++element) {
                        copied[element] = there && line.inside(element) ? chunk[element] : Bits{0};
                    }
                    *to = staged_chunk<PARTS == 1>(copied);
                } else {
#pragma unroll
                    for (int element = 0; element < CHUNK_TAPS; element += COPY_ELEMENTS) {
                        constexpr int BYTES = COPY_ELEMENTS * static_cast<int>(sizeof(Bits));
                        copy_async<BYTES>(reinterpret_cast<Bits*>(to) + element, chunk + element, there && line.inside(element));
                    }
                }
            }
        }
    }
}
