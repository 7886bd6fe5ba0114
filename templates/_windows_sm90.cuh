#pragma once
#include "_sm90.cuh"

// Windows of x that serve TAPS_H x TAPS_W taps, each TAP_STEP_H rows or TAP_STEP_W columns from the one before: a tap's pixels are the first
// tap's, moved by its offset in the window. A pixel is PIXEL_BYTES of neighbours in depth, PITCH of them a row. A tile goes through FRAMES
// windows for each TILE_K channels. Of a STRIP of eight columns the operand's next eight pixels are FOLDED rows of the window further on.
// Needs the family's constants.

constexpr int WINDOW_TAPS = TAPS_H * TAPS_W;

// The operand of the first tap's pixels in a window, from `first` on.
__device__ __forceinline__ unsigned long long pixels_operand(const unsigned char* window, int first) {
    return STRIP ? wgmma_descriptor<PIXEL_BYTES>(window + first / 8 * (FOLDED * PITCH * PIXEL_BYTES), FOLDED * PITCH * PIXEL_BYTES) : wgmma_descriptor<PIXEL_BYTES>(window + first * PIXEL_BYTES);
}

constexpr int TAP_STAGES = K_TILES / CHANNEL_TILES / FRAMES;  // of a window
// MMAs in depth of the last stage, of the last channels or, with JOINED_TAPS, of a window's last taps.
constexpr int SHORT_K_BLOCKS = JOINED_TAPS ? (WINDOW_TAPS * TAP_BLOCKS - 1) % K_BLOCKS + 1 : LAST_K_BLOCKS;
constexpr bool SHORT = (JOINED_TAPS || CHANNEL_TILES > 1) && SHORT_K_BLOCKS < K_BLOCKS;

// Where a consumer is in its windows.
struct Window : PipelineState<WINDOWS> {
    int tap = 0, filter_row = 0, filter_column = 0;
    int k_block = 0;  // of the tap, where a stage has several
    int last = 0;     // whose MMAs are under way
    int channel_tile = 0;

    __device__ __forceinline__ void begin_tile() { tap = filter_row = filter_column = k_block = last = channel_tile = 0; }
    // Of a block's windows with the `first` of them.
    __device__ __forceinline__ void begin_tile(int first) {
        static_cast<PipelineState<WINDOWS>&>(*this) = PipelineState<WINDOWS>::of(first);
        begin_tile();
    }
    // A tile of the other warpgroup.
    __device__ __forceinline__ void skip_tile() { this->advance<FRAMES * CHANNEL_TILES>(); }
    __device__ __forceinline__ void next_tap() {
        if (++filter_column == TAPS_W) filter_column = 0, ++filter_row;
        ++tap;
    }
    // Of stages with several taps.
    __device__ __forceinline__ void next_k_block() {
        if (++k_block == TAP_BLOCKS) k_block = 0, next_tap();
    }
    __device__ __forceinline__ bool is_short() const {
        return JOINED_TAPS ? (WINDOW_TAPS - tap) * TAP_BLOCKS - k_block == SHORT_K_BLOCKS : channel_tile == CHANNEL_TILES - 1;
    }
    // Of the tap's pixels in the windows' descriptor.
    __device__ __forceinline__ int pixels() const {
        return index * (WINDOW_BYTES / DESCRIPTOR_UNIT) + (filter_row * (TAP_STEP_H * PITCH) + filter_column * TAP_STEP_W) * (PIXEL_BYTES / DESCRIPTOR_UNIT);
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
        if (window.tap >= WINDOW_TAPS) {
            window.tap = window.filter_row = window.filter_column = window.k_block = 0;
            ++window;
            if (SHORT && !JOINED_TAPS && ++window.channel_tile == CHANNEL_TILES) window.channel_tile = 0;
        }
    }
};
