#pragma once

// Windows of x whose elements lie at odd places: through registers to as many shifted copies in shared memory. Needs the family's constants.
#include "_input_image.cuh"

#include "_shifted_rows.cuh"

// Elements at once: all rows begin, and end, on a multiple of so many.
constexpr int ROW_ELEMENTS = W * C;
constexpr int LOADED = COLUMN_TILES > 1 || PAD_W > 0 || ROW_ELEMENTS % 2 == 1 ? 1 : ROW_ELEMENTS % 4 > 0 ? 2 : ROW_ELEMENTS % CHUNK_TAPS > 0 ? 4 : CHUNK_TAPS;
constexpr int PLACES = IMAGES * WINDOW_H * ROW_CHUNKS, LOADS = (PLACES + THREADS - 1) / THREADS;  // chunks of a copy, of a thread

// What a thread loads of a work tile's input: of each of its places two chunks of elements, in which the chunks of all copies lie.
struct Fetched {
    static constexpr bool USED = true;
    AlignedArray<Bits, LOADED> at[LOADS][2 * CHUNK_TAPS / LOADED];

    // Zeros stand for padding.
    __device__ __forceinline__ void load(const Bits* __restrict__ x, unsigned work_tile, int filter_frame, int n) {
        const WorkTile from(work_tile);
        const int first_row = from.row * STRIDE_H - PAD_H, first_column = from.column * STRIDE_W - PAD_W;
        const int row_begin = PAD_W == 0 ? 0 : -first_column * C, row_end = (W - first_column) * C;
        const int first_image = input_image(from.image, filter_frame);
        x += (static_cast<long long>(first_image) * H + first_row) * (W * C) + first_column * C;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const unsigned place = threadIdx.x + i * THREADS, line = place / ROW_CHUNKS;
            const int first = static_cast<int>(place % ROW_CHUNKS) * CHUNK_TAPS;  // element of the window's row
            const int image = static_cast<int>(line / WINDOW_H), row = static_cast<int>(line % WINDOW_H);
            bool there = place < PLACES && (DEEP ? first_image >= 0 : IMAGES == 1 || from.image + image < n);
            if constexpr (PADDED_H) there = there && static_cast<unsigned>(first_row + row) < static_cast<unsigned>(H);
            const Bits* const elements = x + (image * H + row) * (W * C) + first;
#pragma unroll
            for (int j = 0; j < 2 * CHUNK_TAPS / LOADED; ++j) {
                const int element = first + j * LOADED;
                const bool inside = there && (PAD_W == 0 || element >= row_begin) && element < row_end;
                at[i][j] = inside ? *reinterpret_cast<const AlignedArray<Bits, LOADED>*>(elements + j * LOADED)
                                  : AlignedArray<Bits, LOADED>{};
            }
        }
    }

    __device__ __forceinline__ void stage(Chunk* staged) const {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int place = static_cast<int>(threadIdx.x) + i * THREADS;
            if (place >= PLACES) break;
#pragma unroll
            for (int copy = 0; copy < COPIES; ++copy) {
                Bits chunk[CHUNK_TAPS];
#pragma unroll
                for (int j = 0; j < CHUNK_TAPS; ++j) {
                    const int element = copy * STEP_W % CHUNK_TAPS + j;
                    chunk[j] = at[i][element / LOADED].at[element % LOADED];
                }
                staged[copy_at(copy) + place] = staged_chunk<PARTS == 1>(chunk);
            }
        }
    }
};

__device__ __forceinline__ void copy_inputs(Chunk*, const Bits*, unsigned, int, int) {}
