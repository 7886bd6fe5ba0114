#pragma once
#include "_ptx_tma_5d.cuh"

// Steps of WINDOW_ROWS rows of a frame of dy, whose window of x serves all taps. Rows of both follow each other, PITCH pixels apart: those of dy
// end with columns that TMA fills with zeros, as they lie outside of dy, and those of x have the padding between them. So a tap's pixels are the
// first tap's, moved by the tap's offset in the window, and those of the taps of a filter row are the columns of one MMA: 64 neighbours, then
// DILATION_W pixels on. Each consumer has a filter row. Needs _mainloop_sm90.cuh and the family's constants.

constexpr int DY_LOADED = WINDOW_ROWS * PITCH, X_LOADED = WINDOW_H * PITCH;  // pixels of a step's boxes
constexpr int LOADED_BYTES = (DY_LOADED + X_LOADED) * OPERAND_ROW_BYTES;
static_assert(DEPTH >= DY_LOADED && X_ROWS >= X_LOADED, "boxes fit a stage");

// Of a tile, for n images.
__device__ __forceinline__ int steps_of_tile(int n) { return n * O * IMAGE_STEPS; }

template <class Tile>
__device__ __forceinline__ void load_step(unsigned char* stage, Barrier* full, const TensorMap& x_map, const TensorMap& dy_map, const Tile& tile, int step) {
    const int frame = step / IMAGE_STEPS, row = step % IMAGE_STEPS * WINDOW_ROWS, channel = first_channel(tile) + tile.first_column;
    tma_load(stage, &dy_map, full, first_filter(tile), 0, row, frame);
    if constexpr (DEEP) {
        const int x_frame = frame % O * STRIDE_D - PAD_D + tile.first_tap / (R * S) * DILATION_D;
        tma_load(stage + DY_BYTES, &x_map, full, channel, -PAD_W, row - PAD_H, x_frame, frame / O);
    } else {
        tma_load(stage + DY_BYTES, &x_map, full, channel, -PAD_W, row - PAD_H, frame);
    }
}

// The operand of a consumer's columns: the taps of its filter row.
__device__ __forceinline__ unsigned long long columns_operand(const unsigned char* x, int consumer) {
    return wgmma_descriptor_transposed<DILATION_W>(x + consumer * (DILATION_H * PITCH * OPERAND_ROW_BYTES));
}

// How a stage is multiplied, all of its pixels.
struct Mma : StagedMma<STAGE_BYTES, 1, true, true> {
    template <int BLOCKS, int TILES_OF_8>
    __device__ __forceinline__ static void multiply(float (&d)[BLOCKS][TILES_OF_8][4], unsigned long long dy, unsigned long long x, int index,
                                                    bool accumulate) {
#pragma unroll
        for (int pixel = 0; pixel < DEPTH; pixel += 16) {
            const int at = index * (STAGE_BYTES / DESCRIPTOR_UNIT) + pixel * ROW_STEP;
            mma(d[0], dy + at, x + at, accumulate || pixel > 0);
        }
        wgmma_commit();
    }
};

// Zeros in rows [begin, end) of a stage, where TMA writes nothing.
__device__ __forceinline__ void clear_rows(unsigned char* rows, int begin, int end) {
    constexpr int CHUNKS = OPERAND_ROW_BYTES / 16;
    using Chunk = AlignedArray<unsigned, 4>;
    for (int i = begin * CHUNKS + static_cast<int>(threadIdx.x); i < end * CHUNKS; i += THREADS) store_operand(rows + i * 16, Chunk{});
}

// What lies behind the boxes of each stage is multiplied, too: by all threads, before a barrier.
__device__ __forceinline__ void clear_behind_boxes(unsigned char* stages) {
    for (int stage = 0; stage < STAGES; ++stage) {
        clear_rows(stages + stage * STAGE_BYTES, DY_LOADED, DEPTH);
        clear_rows(stages + stage * STAGE_BYTES + DY_BYTES, X_LOADED, X_ROWS);
    }
    fence_bulk();
}
