#pragma once

// The frames in front of x that `cache` has, CACHE_D of each video. PAD_D counts them as padding, so input_image returns -1 for them.
// Needs the family's constants.

// The frame of all of cache that an output's frame is made of under a filter's frame; -1 for a frame of x, or padding.
__device__ __forceinline__ int cached_image(int image, int filter_frame) {
    const int frame = image % O * STRIDE_D - PAD_D + filter_frame * DILATION_D + CACHE_D;
    return static_cast<unsigned>(frame) < static_cast<unsigned>(CACHE_D) ? image / O * CACHE_D + frame : -1;
}

// As an argument after x: where its first frame is.
template <class Source>
struct CachedFrames {
    Source cache;

    // Where the frame is: x, or cache with its frame in place of that of x.
    __device__ __forceinline__ Source look_up(Source x, int& frame, int image, int filter_frame) const {
        const int cached = cached_image(image, filter_frame);
        if (cached < 0) return x;
        frame = cached;
        return cache;
    }
};
