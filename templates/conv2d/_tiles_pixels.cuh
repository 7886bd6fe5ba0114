#pragma once
#include "_im2col_sm90.cuh"

// Tiles of TILE_N pixels, counted through all images: each stage has the pixels of one tap. Needs _mainloop_sm90.cuh,
// _epilogue_sm90.cuh, _blocks_*.cuh, what `produce` does, and the family's constants.

__device__ __forceinline__ int pixel_tiles(int n) { return (n * PIXELS + TILE_N - 1) / TILE_N; }

using Boxes = Boxes2d;

// Of a tile; there are no windows.
struct Window {
    __device__ __forceinline__ void begin_tile() {}
    __device__ __forceinline__ void skip_tile() {}
};

struct Mma : StagedMma<STAGE_BYTES, K_BLOCKS> {
    __device__ __forceinline__ static void release(PipelineTma<STAGES>& pipeline, int index, int lane, WindowPipeline&, const Window&) {
        release_stage<CLUSTER_N>(pipeline, index, lane);
    }
    __device__ __forceinline__ static void release_tile(PipelineTma<STAGES>& pipeline, int index, int lane, WindowPipeline&, const Window&) {
        release_stage<CLUSTER_N>(pipeline, index, lane);
    }
};

// No windows, no zeros behind them.
__device__ __forceinline__ void clear_behind_windows(unsigned char*) {}
