#pragma once
#include "_input_image.cuh"

#include "_filter_rows_sm90.cuh"

// Tiles of WINDOW_ROWS rows of an image, whole ones, or those of a STRIP of eight columns. The window of x that they need is loaded once for
// TILE_K channels, with zeros for padding, and a tap's pixels are the first tap's, moved by the tap's offset in the window. Whole rows are
// one row of pixels: columns of padding between them are computed, too, and not stored. Of a strip the operand's next eight pixels are a
// row further on. WINDOW_IMAGES whole images are one image in the same way, with rows of padding between them.
// Where there are three dimensions, images are frames, and a tile has a window of each frame that its filters reach.
// Needs _sm90.cuh, first_channel and the family's constants.

constexpr bool IMAGES = WINDOW_IMAGES > 1;
constexpr int LOADED = (WINDOW_ROWS + (IMAGES ? 0 : (R - 1) * DILATION_H)) * PITCH;  // pixels of a window
static_assert(PITCH <= 256, "a row of a window fits one TMA box");
constexpr int BEHIND = STRIP ? 0 : IMAGES ? PAD_H * PITCH + PAD_W : PAD_W;           // zeros that follow, which TMA never writes

__device__ __forceinline__ int tiles_of(int n) { return (n * O + WINDOW_IMAGES - 1) / WINDOW_IMAGES * IMAGE_TILES * TILES_M; }

// Boxes of z and of outputs: the tile's rows; in a strip a subtile is some of them.
struct Boxes {
    __device__ __forceinline__ static int columns(int) { return 0; }
    __device__ __forceinline__ static int rows(int pixels) { return STRIP ? pixels / 8 : 0; }
    __device__ __forceinline__ static void load(unsigned char* to, const TensorMap& map, Barrier* full, int channel, int column, int row,
                                                int image) {
        tma_load(to, &map, full, channel, column, row, image);
    }
    __device__ __forceinline__ static void store(const TensorMap& map, const unsigned char* from, int channel, int column, int row, int image) {
        tma_store(&map, from, channel, column, row, image);
    }
};

// Where a tile's outputs begin, from its pixel `first` on.
__device__ __forceinline__ Place place_of(int index, int first) {
    const int tile = index / TILES_M % IMAGE_TILES;
    return {tile % STRIPS * 8, tile / STRIPS * WINDOW_ROWS + Boxes::rows(first), index / TILES_M / IMAGE_TILES * WINDOW_IMAGES};
}

// The operand of the first tap's pixels in a window, from `first` on.
__device__ __forceinline__ unsigned long long pixels_operand(const unsigned char* window, int first) {
    return STRIP ? wgmma_descriptor(window + first / 8 * (PITCH * OPERAND_ROW_BYTES), PITCH * OPERAND_ROW_BYTES) : wgmma_descriptor(window);
}

constexpr int TAP_STAGES = K_TILES / CHANNEL_TILES / (TAPS / (R * S));  // of a window
// MMAs in depth of the last stage, of the last channels or, with JOINED_TAPS, of a window's last taps.
constexpr int SHORT_K_BLOCKS = JOINED_TAPS ? (R * S * TAP_BLOCKS - 1) % K_BLOCKS + 1 : LAST_K_BLOCKS;
constexpr bool SHORT = (JOINED_TAPS || CHANNEL_TILES > 1) && SHORT_K_BLOCKS < K_BLOCKS;

// Where a consumer is in its windows.
struct Window : PipelineState<WINDOWS> {
    int tap = 0, filter_row = 0, filter_column = 0;
    int k_block = 0;  // of the tap, where a stage has several
    int last = 0;     // whose MMAs are under way
    int channel_tile = 0;

    __device__ __forceinline__ void begin_tile() { tap = filter_row = filter_column = k_block = last = channel_tile = 0; }
    // A tile of the other warpgroup.
    __device__ __forceinline__ void skip_tile() { this->advance<TAPS / (R * S) * CHANNEL_TILES>(); }
    __device__ __forceinline__ void next_tap() {
        if (++filter_column == S) filter_column = 0, ++filter_row;
        ++tap;
    }
    // Of stages with several taps.
    __device__ __forceinline__ void next_k_block() {
        if (++k_block == TAP_BLOCKS) k_block = 0, next_tap();
    }
    __device__ __forceinline__ bool is_short() const {
        return JOINED_TAPS ? (R * S - tap) * TAP_BLOCKS - k_block == SHORT_K_BLOCKS : channel_tile == CHANNEL_TILES - 1;
    }
    // Of the tap's pixels in the windows' descriptor.
    __device__ __forceinline__ int pixels() const {
        return index * (WINDOW_BYTES / DESCRIPTOR_UNIT) + (filter_row * (DILATION_H * PITCH) + filter_column * DILATION_W) * ROW_STEP;
    }
};

// How a tile is multiplied: filters of a stage, pixels of a window.
struct Mma {
    __device__ __forceinline__ static void wait(PipelineTma<STAGES>& pipeline, const PipelineState<STAGES>& state, WindowPipeline& windows,
                                                const Window& window) {
        if (window.tap == 0) windows.consumer_wait(window);
        pipeline.consumer_wait(state);
    }
    // The first MMAs in depth of a stage.
    template <int COUNT, int BLOCKS, int TILES>
    __device__ __forceinline__ static void multiply_first(float (&d)[BLOCKS][TILES][4], unsigned long long a, unsigned long long b, int index,
                                                          bool accumulate, Window at) {
        int b_at[COUNT];  // found first: the compiler ends a group of MMAs where it branches
#pragma unroll
        for (int k_block = 0; k_block < COUNT; ++k_block) {
            b_at[k_block] = at.pixels() + (JOINED_TAPS ? at.k_block : k_block) * DEPTH_STEP;
            if constexpr (JOINED_TAPS) at.next_k_block();
        }
#pragma unroll
        for (int k_block = 0; k_block < COUNT; ++k_block) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                const int a_at = index * (STAGE_BYTES / DESCRIPTOR_UNIT) + k_block * DEPTH_STEP;
                mma(d[i], a + (a_at + i * MMA_ROWS_STEP), b + b_at[k_block], accumulate || k_block > 0);
            }
        }
        wgmma_commit();
    }
    template <int BLOCKS, int TILES>
    __device__ __forceinline__ static void multiply(float (&d)[BLOCKS][TILES][4], unsigned long long a, unsigned long long b, int index,
                                                    bool accumulate, WindowPipeline&, const Window& window) {
        if (SHORT && window.is_short()) {
            multiply_first<SHORT_K_BLOCKS>(d, a, b, index, accumulate, window);
        } else {
            multiply_first<K_BLOCKS>(d, a, b, index, accumulate, window);
        }
    }
    __device__ __forceinline__ static void release(PipelineTma<STAGES>& pipeline, int index, int lane, WindowPipeline& windows,
                                                   const Window& window) {
        if (lane == 0) pipeline.consumer_release(index);
        if (lane == 0 && window.tap == 0) windows.consumer_release(window.last);
    }
    __device__ __forceinline__ static void release_tile(PipelineTma<STAGES>& pipeline, int index, int lane, WindowPipeline& windows,
                                                        const Window& window) {
        if (lane == 0) pipeline.consumer_release(index);
        if (lane == 0) windows.consumer_release(window.last);
    }
    __device__ __forceinline__ static void next(WindowPipeline&, Window& window) {
        window.last = window.index;
        if constexpr (JOINED_TAPS) {
#pragma unroll
            for (int k_block = 0; k_block < K_BLOCKS; ++k_block) window.next_k_block();
        } else {
            window.next_tap();
        }
        if (window.tap >= R * S) {
            window.tap = window.filter_row = window.filter_column = window.k_block = 0;
            ++window;
            if (SHORT && !JOINED_TAPS && ++window.channel_tile == CHANNEL_TILES) window.channel_tile = 0;
        }
    }
};

// The last columns of a row's taps lie in the padding before the next row, the last rows of an image's taps in the padding above the next
// image. What the last ones read behind the window is made zero here, by all consumers.
__device__ __forceinline__ void clear_behind_windows(unsigned char* windows) {
    using Chunk = AlignedArray<unsigned, 4>;
    for (int window = 0; window < WINDOWS; ++window) {
        Chunk* const behind = reinterpret_cast<Chunk*>(windows + window * WINDOW_BYTES + LOADED * OPERAND_ROW_BYTES);
        for (int i = static_cast<int>(threadIdx.x) - 128; i < BEHIND * 8; i += 128 * CONSUMERS) behind[i] = {};
    }
    fence_bulk();
}

// Loads the window of a tile under a filter's frame.
__device__ __forceinline__ void load_window(unsigned char* to, const TensorMap& x_map, Barrier* full, int channel, const Place& at, int filter_frame) {
    const int image = input_image(at.image, filter_frame);  // of -1 TMA reads zeros
    tma_load(to, &x_map, full, channel, at.column - PAD_W, at.row - PAD_H, image);
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
        for (int first_tap = 0; first_tap < TAPS; first_tap += R * S) {
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c += TILE_K, ++window) {
                window_pipeline->producer_acquire(window, LOADED * OPERAND_ROW_BYTES);
                load_window(windows + window.index * WINDOW_BYTES, x_map, window_pipeline->full + window.index, first_channel(k) + c, at,
                            first_tap / (R * S));
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
