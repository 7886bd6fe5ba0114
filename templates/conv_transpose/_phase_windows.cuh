#pragma once
#include "_windows_sm90.cuh"

// Tiles of WINDOW_ROWS rows of TILE_Q outputs of a phase, and the window of x that serves all their taps: those of parts that have all taps or
// none. Needs Tile and the family's constants.

// Loads all windows of the block's tiles, and filters as stages, of one tap or JOINED_TAPS.
__device__ __forceinline__ void produce(unsigned char* windows, WindowPipeline& window_pipeline, unsigned char* stages, PipelineTma<STAGES>& pipeline,
                                        const TensorMap& x_map, const TensorMap& w_map, int tiles) {
    using Scheduler = PersistentTileScheduler<>;
    PipelineState<STAGES> state;
    PipelineState<WINDOWS> window;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step()) {
        const Tile tile(index);
        const Part part(phase_of(tile.part(), 0));
        if (part.taps() == 0) continue;
        const int place = tile.first / TILE_N, image = place / IMAGE_TILES;
        const int row = place % IMAGE_TILES / STRIPS * WINDOW_ROWS + part.h.input(0), column = place % STRIPS * TILE_Q + part.w.input(0);
#pragma unroll 1
        for (int frame = 0; frame < FRAMES; ++frame) {
            const int d = image % PHASE_O + part.d.input(frame);
            const int x_image = static_cast<unsigned>(d) < static_cast<unsigned>(D) ? image / PHASE_O * D + d : -1;  // of -1 TMA reads zeros
#pragma unroll 1
            for (int c = 0; c < C; c += TILE_K, ++window) {
                window_pipeline.producer_acquire(window, LOADED_BYTES);
                tma_load(windows + window.index * WINDOW_BYTES, &x_map, window_pipeline.full + window.index, c, column, row, x_image);
#pragma unroll 1
                for (int stage = 0; stage < TAP_STAGES; ++stage, ++state) {
                    pipeline.producer_acquire(state, STAGE_BYTES);
                    const int tap = frame * WINDOW_TAPS + (JOINED_TAPS ? 0 : stage);
                    tma_load(stages + state.index * STAGE_BYTES, &w_map, pipeline.full + state.index, JOINED_TAPS ? tap * C + stage * TILE_K : c,
                             JOINED_TAPS ? 0 : tap, tile.m % PART_M, tile.part());
                }
            }
        }
    }
}

// Calls visit(i, pixel) of each output i of a tile from `first` on, COUNT in all, `own` of THREADS and every THREADS-th behind it: which pixel of
// y it is.
template <int COUNT, int THREADS, class Visit>
__device__ __forceinline__ void for_each_output(int first, const Phase& phase, int own, const Visit& visit) {
    const int place = first / TILE_N, at = first % TILE_N + own, image = place / IMAGE_TILES;
    static_assert(!STRIP || THREADS % TILE_Q == 0, "a thread's outputs of a strip lie in a column");
    constexpr int ROWS = STRIP ? THREADS / TILE_Q : 0, COLUMNS = STRIP ? 0 : THREADS;  // to a thread's next output
    const int row = place % IMAGE_TILES / STRIPS * WINDOW_ROWS + at / TILE_Q, column = place % STRIPS * TILE_Q + at % TILE_Q;
    const int d = phase.d.output(image % PHASE_O);
    int h = phase.h.output(row), w = phase.w.output(column);
    long long pixel = ((image / PHASE_O * static_cast<long long>(O) + d) * P + h) * Q + w;
    if (d >= O) return;
    for (int i = own; i < COUNT; i += THREADS, h += ROWS * STRIDE_H, w += COLUMNS * STRIDE_W, pixel += ROWS * STRIDE_H * Q + COLUMNS * STRIDE_W) {
        if (h < P && w < Q) visit(i, pixel);
    }
}
