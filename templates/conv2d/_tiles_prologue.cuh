#pragma once
#include "_filter_rows_sm90.cuh"

#include "_prologue.cuh"

// Tiles of TILE_N pixels, counted through all images, of a 1x1 convolution with a prologue: consumers apply it to each stage of pixels where TMA
// left them, while the MMAs of the stage before run. The factors of the images of a tile follow its pixels. Needs _mainloop_sm90.cuh,
// _epilogue_sm90.cuh, first_channel and the family's constants.

constexpr int X_BYTES = TILE_N * OPERAND_ROW_BYTES, W_BYTES = TILE_M * OPERAND_ROW_BYTES;
constexpr int FACTOR_BYTES = FACTOR_IMAGES * OPERAND_ROW_BYTES;

__device__ __forceinline__ int tiles_of(int n) { return (n * PIXELS + TILE_N - 1) / TILE_N * TILES_M; }

using Boxes = Boxes2d;

// Where a tile's outputs begin, from its pixel `first` on.
__device__ __forceinline__ Place place_of(int index, int first) { return {index / TILES_M * TILE_N + first, 0, 0}; }

// The operand of a stage's pixels, from `first` on.
__device__ __forceinline__ unsigned long long pixels_operand(const unsigned char* pixels, int first) { return wgmma_descriptor(pixels + first * OPERAND_ROW_BYTES); }

// Of a tile; there are no windows, but stages that are prepared.
struct Window {
    unsigned char* stages;
    int consumer;
    int first = 0;  // of the tile's pixels, in its image

    __device__ __forceinline__ void begin_tile() {}
    __device__ __forceinline__ void skip_tile() {}
    // Applies the prologue to a stage's pixels; by all consumers of a tile.
    __device__ __forceinline__ void prepare(int index) const {
        using Chunk = AlignedArray<T, 8>;
        constexpr int THREADS_OF_TILE = PINGPONG ? 128 : 128 * CONSUMERS;
        constexpr int STEP = THREADS_OF_TILE / 8, AT_ONCE = PROLOGUE::HAS_SHIFT ? 2 : 4;  // pixels; loads do not pass stores of earlier ones
        const int thread = static_cast<int>(threadIdx.x) % THREADS_OF_TILE, chunk = thread % 8;  // of a pixel; eight threads have all banks
        unsigned char* const pixels = stages + index * STAGE_BYTES + W_BYTES;
        const Chunk* const factors = reinterpret_cast<const Chunk*>(pixels + X_BYTES) + chunk;
        for (int pixel = thread / 8; pixel < TILE_N; pixel += AT_ONCE * STEP) {
            Chunk inputs[AT_ONCE], scale[AT_ONCE], shift[AT_ONCE];
            unsigned char* at[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int own = pixel + i * STEP;
                if (TILE_N % (AT_ONCE * STEP) > 0 && own >= TILE_N) break;
                at[i] = pixels + own * OPERAND_ROW_BYTES + (chunk ^ own % 8) * 16;
                inputs[i] = *reinterpret_cast<const Chunk*>(at[i]);
                const Chunk* const factor = factors + (first + own) / PIXELS * 8;
                scale[i] = *factor;
                if constexpr (PROLOGUE::HAS_SHIFT) shift[i] = factor[FACTOR_IMAGES * 8];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (TILE_N % (AT_ONCE * STEP) > 0 && pixel + i * STEP >= TILE_N) break;
                PROLOGUE::apply(inputs[i], scale[i], shift[i]);
                store_operand(at[i], inputs[i]);
            }
        }
        fence_bulk();
        sync_threads<THREADS_OF_TILE>(CONSUMERS + 2 + (PINGPONG ? consumer : 0));
    }
};

struct Mma : StagedMma<STAGE_BYTES, K_BLOCKS> {
    __device__ __forceinline__ static void wait(PipelineTma<STAGES>& pipeline, const PipelineState<STAGES>& state, WindowPipeline&, const Window& window) {
        pipeline.consumer_wait(state);
        window.prepare(state.index);
    }
};

// No windows, no zeros behind them.
__device__ __forceinline__ void clear_behind_windows(unsigned char*) {}

// The tensor maps of x and of what its prologue needs.
struct PrologueMaps {
    const TensorMap &x, &scale, &shift;
};

// Loads all stages of the block's tiles: filters, FILTER_ROWS at a time, pixels and their factors.
template <int FILTERS, int FILTER_ROWS>
__device__ __forceinline__ void produce(unsigned char* stages, PipelineTma<STAGES>& pipeline, const PrologueMaps& maps, const TensorMap& w_map,
                                        int tiles, unsigned char*, WindowPipeline*) {
    constexpr int MOST_BOX = 256;  // pixels, TMA's limit
    constexpr int BOXES = (TILE_N + MOST_BOX - 1) / MOST_BOX, BOX = TILE_N / BOXES;
    using Scheduler = PersistentTileScheduler<>;
    PipelineState<STAGES> state;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step()) {
        const int k = index % TILES_M * TILE_M, pixel = index / TILES_M * TILE_N;
#pragma unroll 1
        for (int c = 0; c < CHANNELS; c += TILE_K, ++state) {
            pipeline.producer_acquire(state, filter_bytes<FILTER_ROWS>(k) + X_BYTES + (PROLOGUE::HAS_SHIFT ? 2 : 1) * FACTOR_BYTES);
            unsigned char* const stage = stages + state.index * STAGE_BYTES;
            Barrier* const full = pipeline.full + state.index;
            load_filters<FILTER_ROWS>(stage, w_map, full, c, 0, k);
#pragma unroll
            for (int i = 0; i < BOXES; ++i) tma_load(stage + W_BYTES + i * (BOX * OPERAND_ROW_BYTES), &maps.x, full, c, pixel + i * BOX);
            tma_load(stage + W_BYTES + X_BYTES, &maps.scale, full, c, pixel / PIXELS);
            if constexpr (PROLOGUE::HAS_SHIFT) tma_load(stage + W_BYTES + X_BYTES + FACTOR_BYTES, &maps.shift, full, c, pixel / PIXELS);
        }
    }
}
