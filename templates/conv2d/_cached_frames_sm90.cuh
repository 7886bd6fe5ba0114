#pragma once
#include "_cached_frames.cuh"

#include "_im2col_sm90.cuh"

#include "_input_image.cuh"

// Loads of frames of x, or of `cache` in front of it, in place of those of x alone. A box has pixels of one frame. Needs _epilogue_sm90.cuh and the
// family's constants.

// The tensor maps of x and of cache, whose images are frames.
struct CachedMaps {
    const TensorMap &x, &cache;
};

// The frame under a filter's frame, and the map that has it; -1, of which TMA reads zeros, in the padding.
struct CachedFrame {
    const TensorMap* map;
    int image;

    __device__ __forceinline__ CachedFrame(const CachedMaps& maps, int output_image, int filter_frame)
        : map(&maps.x), image(input_image(output_image, filter_frame)) {
        map = CachedFrames<const TensorMap*>{&maps.cache}.look_up(map, image, output_image, filter_frame);
    }
};

// As in _im2col_sm90.cuh.
__device__ __forceinline__ void load_pixels(unsigned char* to, const CachedMaps& maps, Barrier* full, int channel, int pixel,
                                            const Corner& corner, int tap) {
    const CachedFrame from(maps, pixel / (P * Q), tap / (R * S));
    tma_load_im2col(to, from.map, full, channel, corner.left, corner.top, from.image, tap % S * DILATION_W, tap / S % R * DILATION_H);
}

// As in _tiles_windows.cuh.
__device__ __forceinline__ void load_window(unsigned char* to, const CachedMaps& maps, Barrier* full, int channel, const Place& at, int filter_frame) {
    const CachedFrame from(maps, at.image, filter_frame);
    tma_load(to, from.map, full, channel, at.column - PAD_W, at.row - PAD_H, from.image);
}
