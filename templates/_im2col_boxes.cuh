#pragma once

// Where the window of a pixel begins in an image.
struct Corner {
    int image, top, left, front;
};

// The corner of a pixel, counted through all images.
__device__ __forceinline__ Corner window_corner(int pixel) {
    Corner corner;
    corner.image = pixel / (O * P * Q);
    corner.top = pixel % (P * Q) / Q * STRIDE_H - PAD_H;
    corner.left = pixel % Q * STRIDE_W - PAD_W;
    corner.front = DEEP ? pixel % (O * P * Q) / (P * Q) * STRIDE_D - PAD_D : 0;
    return corner;
}

// Loads a box of pixels from `pixel` on.
__device__ __forceinline__ void load_pixels(unsigned char* to, const TensorMap& x_map, Barrier* full, int channel, int pixel,
                                            const Corner& corner, int tap) {
    if constexpr (POINTWISE) {
        tma_load(to, &x_map, full, channel, pixel);
    } else if constexpr (FLAT) {
        tma_load_im2col(to, &x_map, full, channel, corner.left, corner.image, tap * DILATION_W);
    } else if constexpr (DEEP) {
        tma_load_im2col(to, &x_map, full, channel, corner.left, corner.top, corner.front, corner.image, tap % S * DILATION_W,
                        tap / S % R * DILATION_H, tap / (R * S) * DILATION_D);
    } else {
        tma_load_im2col(to, &x_map, full, channel, corner.left, corner.top, corner.image, tap % S * DILATION_W, tap / S * DILATION_H);
    }
}
