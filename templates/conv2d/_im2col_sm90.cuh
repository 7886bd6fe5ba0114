#pragma once
#include "_filter_rows_sm90.cuh"

// Stages of filters and of pixels of one tap, as TMA loads them. Needs _sm90.cuh, first_channel for `produce`,
// and the family's constants.

#include "_im2col_boxes.cuh"

// Loads all stages of the block's tiles: FILTERS parts of the filters, or one of FILTER_ROWS at a time, then pixels.
template <int FILTERS = 1, int FILTER_ROWS = TILE_M, class Maps, class... Windows>
__device__ __forceinline__ void produce(unsigned char* stages, PipelineTma<STAGES>& pipeline, const Maps& x_map, const TensorMap& w_map,
                                        int tiles, Windows...) {
    constexpr int MOST_BOX = 256;  // pixels, TMA's limit
    constexpr int BOXES = (TILE_N + MOST_BOX - 1) / MOST_BOX, BOX = TILE_N / BOXES, W_BYTES = FILTERS * TILE_M * OPERAND_ROW_BYTES;
    static_assert(BOXES * BOX == TILE_N, "boxes of pixels divide a tile");
    using Scheduler = PersistentTileScheduler<>;
    PipelineState<STAGES> state;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step()) {
        const int k = index % TILES_M * TILE_M, pixel = index / TILES_M * TILE_N;
        Corner corners[BOXES] = {};  // of the first pixels
#pragma unroll
        for (int i = 0; !POINTWISE && i < BOXES; ++i) corners[i] = window_corner(pixel + i * BOX);
#pragma unroll 1
        for (int tap = 0; tap < TAPS; ++tap) {
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c += TILE_K, ++state) {
                pipeline.producer_acquire(state, (FILTERS == 1 ? filter_bytes<FILTER_ROWS>(k) : W_BYTES) + TILE_N * OPERAND_ROW_BYTES);
                unsigned char* const stage = stages + state.index * STAGE_BYTES;
                Barrier* const full = pipeline.full + state.index;
                if constexpr (FILTERS == 1) {
                    load_filters<FILTER_ROWS>(stage, w_map, full, c, tap, k);
                } else {
                    tma_load(stage, &w_map, full, c, tap, k, 0);
                }
#pragma unroll
                for (int i = 0; i < BOXES; ++i) {
                    unsigned char* const to = stage + W_BYTES + i * (BOX * OPERAND_ROW_BYTES);
                    load_pixels(to, x_map, full, first_channel(k) + c, pixel + i * BOX, corners[i], tap);
                }
            }
        }
    }
}
