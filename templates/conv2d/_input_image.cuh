#pragma once

// Frames of x under the frames of filters. Needs the family's constants.

// The image of x, or frame of all videos, that an output's image is made of under a filter's frame; -1 in the padding.
__device__ __forceinline__ int input_image(int image, int filter_frame) {
    if constexpr (!DEEP) return image;
    const int frame = image % O * STRIDE_D - PAD_D + filter_frame * DILATION_D;
    return static_cast<unsigned>(frame) < static_cast<unsigned>(D) ? image / O * D + frame : -1;
}
