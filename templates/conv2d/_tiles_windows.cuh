#pragma once

// Tiles of WINDOW_ROWS rows of an image. The window of x that they need is loaded once for TILE_K channels, with zeros for padding, and a
// tap's pixels begin TAP pixels behind the first: columns of padding between the rows are computed, too, and not stored.
// Needs _pipeline.cuh, _ptx_tma.cuh, first_channel and the family's constants.

constexpr int LOADED = (WINDOW_ROWS + (R - 1) * DILATION_H) * PITCH;  // pixels of a window; zeros follow, which TMA never writes

__device__ __forceinline__ int tiles_of(int n) { return n * IMAGE_TILES * TILES_M; }

// A box of z to shared memory, and a box of outputs from there: whole rows.
__device__ __forceinline__ void load_box(unsigned char* to, const TensorMap& map, Barrier* full, int channel, int, int row, int image) {
    tma_load(to, &map, full, channel, 0, row, image);
}

__device__ __forceinline__ void store_box(const TensorMap& map, const unsigned char* from, int channel, int, int row, int image) {
    tma_store(&map, from, channel, 0, row, image);
}

// A row's last taps lie in the next one's padding; behind the last row are zeros. By all consumers.
__device__ __forceinline__ void clear_behind_windows(unsigned char* windows) {
    using Chunk = AlignedArray<unsigned, 4>;
    for (int i = static_cast<int>(threadIdx.x) - 128; i < WINDOWS * PAD_W * 8; i += 128 * CONSUMERS) {
        *reinterpret_cast<Chunk*>(windows + i / (PAD_W * 8) * WINDOW_BYTES + LOADED * 128 + i % (PAD_W * 8) * 16) = {};
    }
    fence_bulk();
}

// Loads all windows of the block's tiles, and filters of TILE_K channels of one tap as a stage.
__device__ __forceinline__ void produce(unsigned char* stages, unsigned char* windows, PipelineTma<STAGES>& pipeline,
                                        WindowPipeline& window_pipeline, const TensorMap& x_map, const TensorMap& w_map, int tiles) {
    PipelineState<STAGES> state;
    PipelineState<WINDOWS> window;
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
        const int k = index % TILES_M * TILE_M, image = index / TILES_M / IMAGE_TILES, row = index / TILES_M % IMAGE_TILES * WINDOW_ROWS;
#pragma unroll 1
        for (int c = 0; c < CHANNELS; c += TILE_K, ++window) {
            window_pipeline.producer_acquire(window, LOADED * 128);
            tma_load(windows + window.index * WINDOW_BYTES, &x_map, window_pipeline.full + window.index, first_channel(k) + c, 0 - PAD_W,
                     row - PAD_H, image);
#pragma unroll 1
            for (int tap = 0; tap < R * S; ++tap, ++state) {
                pipeline.producer_acquire(state, STAGE_BYTES);
                tma_load(stages + state.index * STAGE_BYTES, &w_map, pipeline.full + state.index, c, tap, k);
            }
        }
    }
}
