#pragma once
#include "_ptx_tma_5d.cuh"

#include "_input_image.cuh"

#include "_filter_rows_sm90.cuh"

// Tiles of WINDOW_ROWS rows of an image, whole ones, or those of a STRIP of eight columns. The window of x that they need is loaded once for
// TILE_K channels, with zeros for padding. Whole rows are one row of pixels: columns of padding between them are computed, too, and not
// stored. WINDOW_IMAGES whole images are one image in the same way, with rows of padding between them.
// Where there are three dimensions, images are frames, and a tile has a window of each frame that its filters reach.
// Needs _sm90.cuh, first_channel and the family's constants.

constexpr int TAPS_H = R, TAPS_W = S, TAP_STEP_H = DILATION_H, TAP_STEP_W = DILATION_W, FRAMES = TAPS / (R * S);

#include "_windows_sm90.cuh"

constexpr bool IMAGES = WINDOW_IMAGES > 1;
constexpr int LOADED = (IMAGES ? WINDOW_ROWS : FOLDED * (WINDOW_ROWS - 1) + 1 + (R - 1) * DILATION_H) * PITCH;  // pixels of a window
static_assert(PITCH <= 256, "a row of a window fits one TMA box");
constexpr int BEHIND = STRIP ? 0 : IMAGES ? PAD_H * PITCH + PAD_W : PAD_W;           // zeros that follow, which TMA never writes

__device__ __forceinline__ int tiles_of(int n) { return (n * O + WINDOW_IMAGES - 1) / WINDOW_IMAGES * IMAGE_TILES * TILES_M; }

// Boxes of z and of outputs: the tile's rows; in a strip a subtile is some of them.
struct Boxes {
    __device__ __forceinline__ static int columns(int) { return 0; }
    __device__ __forceinline__ static int rows(int pixels) { return STRIP ? pixels / 8 : 0; }
    __device__ __forceinline__ static void load(unsigned char* to, const TensorMap& map, Barrier* full, int channel, int column, int row,
                                                int image) {
        if constexpr (FOLDED > 1) {
            tma_load(to, &map, full, 0, column, channel / FOLD, row, image);
        } else {
            tma_load(to, &map, full, channel, column, row, image);
        }
    }
    __device__ __forceinline__ static void store(const TensorMap& map, const unsigned char* from, int channel, int column, int row, int image) {
        if constexpr (FOLDED > 1) {
            tma_store(&map, from, 0, column, channel / FOLD, row, image);
        } else {
            tma_store(&map, from, channel, column, row, image);
        }
    }
};

// Where a tile's outputs begin, from its pixel `first` on.
__device__ __forceinline__ Place place_of(int index, int first) {
    const int tile = index / TILES_M % IMAGE_TILES;
    return {tile % STRIPS * 8, tile / STRIPS * WINDOW_ROWS + Boxes::rows(first), index / TILES_M / IMAGE_TILES * WINDOW_IMAGES};
}

// The last columns of a row's taps lie in the padding before the next row, the last rows of an image's taps in the padding above the next
// image. What the last ones read behind the window is made zero here, by all consumers.
__device__ __forceinline__ void clear_behind_windows(unsigned char* windows) {
    using Chunk = AlignedArray<unsigned, 4>;
    for (int window = 0; window < WINDOWS; ++window) {
        Chunk* const behind = reinterpret_cast<Chunk*>(windows + window * WINDOW_BYTES + LOADED * PIXEL_BYTES);
        for (int i = static_cast<int>(threadIdx.x) - 128; i < BEHIND * (PIXEL_BYTES / 16); i += 128 * CONSUMERS) behind[i] = {};
    }
    fence_bulk();
}

// Loads the window of a tile under a filter's frame.
__device__ __forceinline__ void load_window(unsigned char* to, const TensorMap& x_map, Barrier* full, int channel, const Place& at, int filter_frame) {
    const int image = input_image(at.image, filter_frame);  // of -1 TMA reads zeros
    tma_load(to, &x_map, full, channel, at.column - PAD_W, at.row * FOLDED - PAD_H, image);
}

// Loads all windows of the block's tiles, and filters of TILE_K channels as a stage, of one tap or JOINED_TAPS, FILTER_ROWS at a time.
template <int FILTERS, int FILTER_ROWS, class Maps>
__device__ __forceinline__ void produce(unsigned char* stages, PipelineTma<STAGES>& pipeline, const Maps& x_map, const TensorMap& w_map,
                                        int tiles, unsigned char* windows, WindowPipeline* window_pipeline) {
    using Scheduler = PersistentTileScheduler<>;
    PipelineState<STAGES> state;
    PipelineState<WINDOWS> window;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step()) {
        const int k = index % TILES_M * TILE_M;
        const Place at = place_of(index, 0);
#pragma unroll 1
        for (int first_tap = 0; first_tap < TAPS; first_tap += WINDOW_TAPS) {
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c += TILE_K, ++window) {
                window_pipeline->producer_acquire(window, LOADED * PIXEL_BYTES);
                load_window(windows + window.index * WINDOW_BYTES, x_map, window_pipeline->full + window.index, first_channel(k) + c, at,
                            first_tap / WINDOW_TAPS);
#pragma unroll 1
                for (int stage = 0; stage < TAP_STAGES; ++stage, ++state) {
                    pipeline.producer_acquire(state, filter_bytes<FILTER_ROWS>(k));
                    load_filters<FILTER_ROWS>(stages + state.index * STAGE_BYTES, w_map, pipeline.full + state.index,
                                              JOINED_TAPS ? first_tap * CHANNELS + stage * TILE_K : c, JOINED_TAPS ? 0 : first_tap + stage, k);
                }
            }
        }
    }
}
