#pragma once

// Tiles of TILE_N outputs of a phase, counted through all images: each stage has the pixels of one tap. Needs _mainloop_sm90.cuh, Tile and the
// family's constants.

// Loads all stages of the block's tiles.
__device__ __forceinline__ void produce(unsigned char* stages, PipelineTma<STAGES>& pipeline, const TensorMap& x_map, const TensorMap& w_map,
                                        int tiles) {
    constexpr int MOST_BOX = 256;  // pixels, TMA's limit
    constexpr int BOXES = (TILE_N + MOST_BOX - 1) / MOST_BOX, BOX = TILE_N / BOXES, W_BYTES = TILE_M * ROW_BYTES;
    static_assert(BOXES * BOX == TILE_N, "boxes of pixels divide a tile");
    using Scheduler = PersistentTileScheduler<>;
    PipelineState<STAGES> state;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step()) {
        const Tile tile(index);
        const Part part(phase_of(tile.part(), 0));
        const int taps = part.taps();
#pragma unroll 1
        for (int tap = 0; tap < taps; ++tap) {
            // Its offsets in the box.
            const int d = part.d.input(tap / (part.h.count * part.w.count)) - LOW_D;
            const int h = part.h.input(tap / part.w.count % part.h.count) - LOW_H;
            const int w = part.w.input(tap % part.w.count) - LOW_W;
#pragma unroll 1
            for (int c = 0; c < C; c += TILE_K, ++state) {
                pipeline.producer_acquire(state, STAGE_BYTES);
                unsigned char* const stage = stages + state.index * STAGE_BYTES;
                Barrier* const full = pipeline.full + state.index;
                tma_load(stage, &w_map, full, c, tap, tile.m % PART_M, tile.part());
#pragma unroll
                for (int i = 0; i < BOXES; ++i) {
                    unsigned char* const to = stage + W_BYTES + i * (BOX * ROW_BYTES);
                    const int at = tile.first + i * BOX, image = at / (PHASE_O * PHASE_P * PHASE_Q);
                    const int left = at % PHASE_Q + LOW_W, top = at / PHASE_Q % PHASE_P + LOW_H, front = at / (PHASE_P * PHASE_Q) % PHASE_O + LOW_D;
                    if constexpr (FLAT) {
                        tma_load_im2col(to, &x_map, full, c, left, image, w);
                    } else if constexpr (DEEP) {
                        tma_load_im2col(to, &x_map, full, c, left, top, front, image, w, h, d);
                    } else {
                        tma_load_im2col(to, &x_map, full, c, left, top, image, w, h);
                    }
                }
            }
        }
    }
}
