#pragma once

// Pixels of x [N, D, H, W, C], whose channels are contiguous: a stage has a row of TILE_K channels for each pixel. Needs _sm90.cuh,
// _ptx_ldmatrix.cuh and the family's constants.

#include "_im2col_boxes.cuh"

// The channel of eight that is at a place in depth.
__device__ __forceinline__ int channel_of(int place) { return place; }

// A box of a tile's pixels, which are counted through all images.
struct PixelBox {
    static constexpr int COUNT = BLOCKS, BOX = TILE_N / COUNT;

    int index, pixel;
    Corner corner;

    __device__ __forceinline__ static int tiles(int n) { return (n * (O * P * Q) + TILE_N - 1) / TILE_N; }

    __device__ __forceinline__ PixelBox(int tile, int box) : index(box), pixel(tile * TILE_N + box * BOX), corner(window_corner(pixel)) {}

    __device__ __forceinline__ void load(unsigned char* pixels, const TensorMap& x_map, Barrier* full, int c, int tap) const {
        load_pixels(pixels + index * (BOX * OPERAND_ROW_BYTES), x_map, full, c, pixel, corner, tap);
    }
};

// What a lane loads: matrices of 8 pixels and 4 channels each.
struct LanePixels {
    int row, chunk;  // bytes; chunks are swapped by the pixel's place in eight

    __device__ __forceinline__ LanePixels(int first_pixel, int lane)
        : row((first_pixel + lane % 16) * OPERAND_ROW_BYTES), chunk((lane / 16 ^ lane % 8) * 16) {}

    __device__ __forceinline__ void begin(int) {}  // a stage has one tap
    __device__ __forceinline__ void load(Fragment (&fragments)[BLOCKS], const unsigned char* pixels, int k_block) const {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            load_matrices(fragments[i], pixels + row + i * (16 * OPERAND_ROW_BYTES) + (chunk ^ k_block * MMA_DEPTH_BYTES));
        }
    }
};
