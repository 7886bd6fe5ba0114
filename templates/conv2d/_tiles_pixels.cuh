#pragma once

// Tiles of TILE_N pixels, counted through all images: each stage has the pixels of one tap. Needs _pipeline.cuh, _ptx_tma.cuh,
// first_channel and the family's constants.

constexpr int X_BOXES = (TILE_N + 255) / 256;  // that TMA loads, of 256 pixels at most

__device__ __forceinline__ int tiles_of(int n) { return (n * (P * Q) + TILE_N - 1) / TILE_N * TILES_M; }

// A box of z to shared memory, and a box of outputs from there: of pixels.
__device__ __forceinline__ void load_box(unsigned char* to, const TensorMap& map, Barrier* full, int channel, int pixel, int, int) {
    tma_load(to, &map, full, channel, pixel);
}

__device__ __forceinline__ void store_box(const TensorMap& map, const unsigned char* from, int channel, int pixel, int, int) {
    tma_store(&map, from, channel, pixel);
}

// No windows, no zeros behind them.
__device__ __forceinline__ void clear_behind_windows(unsigned char*) {}

// Loads all stages of the block's tiles: filters, then pixels.
__device__ __forceinline__ void produce(unsigned char* stages, unsigned char*, PipelineTma<STAGES>& pipeline, WindowPipeline&,
                                        const TensorMap& x_map, const TensorMap& w_map, int tiles) {
    PipelineState<STAGES> state;
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
        const int k = index % TILES_M * TILE_M, pixel = index / TILES_M * TILE_N;
        int image[X_BOXES], top[X_BOXES], left[X_BOXES];  // of the first pixel's window
#pragma unroll
        for (int i = 0; !POINTWISE && i < X_BOXES; ++i) {
            const int first = pixel + i * (TILE_N / X_BOXES);
            image[i] = first / (P * Q);
            top[i] = first % (P * Q) / Q * STRIDE_H - PAD_H;
            left[i] = first % Q * STRIDE_W - PAD_W;
        }
#pragma unroll 1
        for (int tap = 0; tap < R * S; ++tap) {
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c += TILE_K, ++state) {
                pipeline.producer_acquire(state, STAGE_BYTES);
                unsigned char* const stage = stages + state.index * STAGE_BYTES;
                Barrier* const full = pipeline.full + state.index;
                tma_load(stage, &w_map, full, c, tap, k);
#pragma unroll
                for (int i = 0; i < X_BOXES; ++i) {
                    unsigned char* const to = stage + TILE_M * 128 + i * (TILE_N / X_BOXES * 128);
                    const int channel = first_channel(k) + c;
                    if constexpr (POINTWISE) {
                        tma_load(to, &x_map, full, channel, pixel + i * (TILE_N / X_BOXES));
                    } else {
                        tma_load_im2col(to, &x_map, full, channel, left[i], top[i], image[i], tap % S * DILATION_W, tap / S * DILATION_H);
                    }
                }
            }
        }
    }
}
