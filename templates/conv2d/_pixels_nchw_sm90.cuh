#pragma once

// Pixels of x [N, C, D, H, W], whose neighbours in a row are contiguous. A SEGMENT of outputs is of one row of an image; of the last one's
// columns some may lie beyond it. It reads a window of BOXES boxes, rows of SEGMENT inputs for each channel, which begins SHIFT columns early.
// Needs _sm90.cuh, _epilogue.cuh and the family's constants.

#include "_ptx_tma_5d.cuh"

#include "_staged_channels_sm90.cuh"

constexpr int SEGMENT = 32, SEGMENTS = TILE_N / SEGMENT, ROW_SEGMENTS = (ROW_Q + SEGMENT - 1) / SEGMENT;

// The channel of eight that is at a place in depth. A lane's two channels are neighbours, so that the four lanes of a pixel read rows 0, 2, 4
// and 6 of eight, or 1, 3, 5 and 7: eight pixels of these lie in all banks.
__device__ __forceinline__ int channel_of(int place) { return place % 4 * 2 + place / 4; }

// A segment, counted through all images.
struct Segment {
    int image, row, column;

    __device__ __forceinline__ explicit Segment(int index)
        : image(index / (ROWS * ROW_SEGMENTS)), row(index / ROW_SEGMENTS % ROWS), column(index % ROW_SEGMENTS * SEGMENT) {}
};

// A box of a segment's window.
struct PixelBox {
    static constexpr int COUNT = SEGMENTS * BOXES;

    int index;
    Segment segment;

    __device__ __forceinline__ static int tiles(int n) { return (n * (ROWS * ROW_SEGMENTS) + SEGMENTS - 1) / SEGMENTS; }

    __device__ __forceinline__ PixelBox(int tile, int box) : index(box), segment(tile * SEGMENTS + box / BOXES) {}

    __device__ __forceinline__ void load(unsigned char* pixels, const TensorMap& x_map, Barrier* full, int c, int tap) const {
        unsigned char* const to = pixels + index * (TILE_K * OPERAND_ROW_BYTES);
        const int w = segment.column * STRIDE_W - PAD_W - SHIFT + index % BOXES * SEGMENT;
        [[maybe_unused]] const int h = segment.row % P * STRIDE_H + tap / S % R * DILATION_H - PAD_H;
        if constexpr (POINTWISE || FLAT) {
            tma_load(to, &x_map, full, w, c, segment.image);
        } else if constexpr (DEEP) {
            tma_load(to, &x_map, full, w, h, segment.row / P * STRIDE_D + tap / (R * S) * DILATION_D - PAD_D, c, segment.image);
        } else {
            tma_load(to, &x_map, full, w, h, c, segment.image);
        }
    }
};

// A lane has VECTORS vectors of pixels that follow each other, each pixel in a row of an MMA of its own. If a pixel reads one column, a vector is
// loaded at once. Else it is one pixel, so that neighbouring lanes load neighbouring pixels from all banks, whatever the shift.
constexpr int VECTORS = 2 * BLOCKS / VECTOR;

// Where a lane's vector begins, seen from its warp's first pixel.
__device__ __forceinline__ int vector_pixel(int vector, int lane) { return (vector * 8 + lane / 4) * VECTOR; }

// What a lane loads: of its pixels two channels each.
struct LanePixels {
    int inputs[VECTORS], channel;  // columns of the first tap, counted through all boxes
    int at[VECTORS][2];            // bytes

    __device__ __forceinline__ LanePixels(int first_pixel, int lane) : channel(channel_of(lane % 4)) {
#pragma unroll
        for (int vector = 0; vector < VECTORS; ++vector) {
            const int pixel = first_pixel + vector_pixel(vector, lane);
            inputs[vector] = pixel / SEGMENT * (BOXES * SEGMENT) + pixel % SEGMENT * STRIDE_W + SHIFT;
        }
        if constexpr (S == 1) locate(0);
    }
    __device__ __forceinline__ void locate(int tap) {
#pragma unroll
        for (int vector = 0; vector < VECTORS; ++vector) {
            const int input = inputs[vector] + tap * DILATION_W;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = input / SEGMENT * TILE_K + channel + i;
                at[vector][i] = row * OPERAND_ROW_BYTES + (input % SEGMENT / 4 ^ (channel + i)) * 16 + input % 4 * 4;
            }
        }
    }
    // Before the loads of a tap of the filter row.
    __device__ __forceinline__ void begin(int tap) {
        if constexpr (S > 1) locate(tap);
    }
    __device__ __forceinline__ void load(Fragment (&fragments)[BLOCKS], const unsigned char* pixels, int k_block) const {
#pragma unroll
        for (int vector = 0; vector < VECTORS; ++vector) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const unsigned char* const from = pixels + at[vector][i] + k_block * (8 * OPERAND_ROW_BYTES);
                const auto words = *reinterpret_cast<const AlignedArray<unsigned, VECTOR>*>(from);
#pragma unroll
                for (int word = 0; word < VECTOR; ++word) {
                    const int row = vector * VECTOR + word;
                    fragments[row / 2][2 * i + row % 2] = words.at[word];
                }
            }
        }
    }
};

constexpr long long PLANE = static_cast<long long>(ROWS) * ROW_Q;  // of an image and channel

// The place of a segment's first output, of channel 0.
__device__ __forceinline__ long long output_at(const Segment& segment) {
    return segment.image * (K * PLANE) + static_cast<long long>(segment.row) * ROW_Q + segment.column;
}

// Stores a lane's outputs of a tile, of the output channels from k on, in vectors: eight lanes write a line.
__device__ __forceinline__ void store_vectors(const float (&sums)[BLOCKS][TILE_M / 8][4], float* y, [[maybe_unused]] const float* z,
                                              const float* bias, int first_segment, int first_pixel, int segments, int k, int lane) {
    using Vector = AlignedArray<float, VECTOR>;
#pragma unroll
    for (int vector = 0; vector < VECTORS; ++vector) {
        const int pixel = first_pixel + vector_pixel(vector, lane);
        const Segment segment(first_segment + pixel / SEGMENT);
        if (first_segment + pixel / SEGMENT >= segments || segment.column + pixel % SEGMENT >= ROW_Q) continue;
        const long long first = output_at(segment) + pixel % SEGMENT;
#pragma unroll
        for (int i = 0; i < TILE_M / 4; ++i) {
            const int channel = k + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (channel >= K) break;
            const float channel_bias = EPILOGUE::HAS_BIAS ? bias[channel] : 0.0f;
            const long long at = first + channel * PLANE;
            Vector added = {}, outputs;
            if constexpr (EPILOGUE::HAS_RESIDUAL) added = *reinterpret_cast<const Vector*>(z + at);
#pragma unroll
            for (int word = 0; word < VECTOR; ++word) {
                const int row = vector * VECTOR + word;
                outputs.at[word] = finished(sums[row / 2][i / 2][row % 2 * 2 + i % 2], channel_bias, added.at[word]);
            }
            *reinterpret_cast<Vector*>(y + at) = outputs;
        }
    }
}

// Stores rows of outputs of STAGED_K channels out of shared memory, those of a warp: lines of 32 outputs, wherever in a line a row begins.
// Partial sectors cost as much as several whole ones.
__device__ __forceinline__ void store_rows(const float* staged, float* y, [[maybe_unused]] const float* z, const float* bias, int first_segment,
                                           int segments, int k, int warp, int lane) {
    constexpr int GROUP_SEGMENTS = 64 * BLOCKS / SEGMENT, LINES = GROUP_SEGMENTS + 1;
#pragma unroll 1
    for (int i = 0; i < GROUP_SEGMENTS && first_segment + i < segments;) {
        const Segment segment(first_segment + i);
        const int run = min(GROUP_SEGMENTS - i, ROW_SEGMENTS - segment.column / SEGMENT);  // segments of the same row
        const int count = min(run * SEGMENT, ROW_Q - segment.column);
#pragma unroll
        for (int channel = warp; channel < STAGED_K; channel += 4) {
            if (k + channel >= K) break;
            const float channel_bias = EPILOGUE::HAS_BIAS ? bias[k + channel] : 0.0f;
            const long long first = output_at(segment) + (k + channel) * PLANE;
            const int before = static_cast<int>(first % SEGMENT);
#pragma unroll
            for (int line = 0; line < LINES; ++line) {
                const int pixel = line * SEGMENT - before + lane;
                if (pixel < 0 || pixel >= count) continue;
                const float added = EPILOGUE::HAS_RESIDUAL ? z[first + pixel] : 0.0f;
                y[first + pixel] = finished(staged[channel * STAGED_PITCH + i * SEGMENT + pixel], channel_bias, added);
            }
        }
        i += run;
    }
}

// Stores a tile's outputs, of the output channels from k on.
__device__ __forceinline__ void store(const float (&sums)[BLOCKS][TILE_M / 8][4], [[maybe_unused]] float* staged, float* y, const float* z,
                                      const float* bias, int tile, int first_pixel, int k, int lane, int n) {
    const int segments = n * (ROWS * ROW_SEGMENTS);
    if constexpr (VECTOR == 4) {
        store_vectors(sums, y, z, bias, tile * SEGMENTS, first_pixel, segments, k, lane);
    } else {
        constexpr int GROUP_PIXELS = 64 * BLOCKS;
        const int group = first_pixel / GROUP_PIXELS, in_group = first_pixel % GROUP_PIXELS;
        staged += group * (STAGED_K * STAGED_PITCH);
#pragma unroll
        for (int first = 0; first < TILE_M; first += STAGED_K) {
            stage_channels(sums, staged, group, first, lane, [&](int row) { return in_group + vector_pixel(row / VECTOR, lane) + row % VECTOR; });
            store_rows(staged, y, z, bias, tile * SEGMENTS + group * (GROUP_PIXELS / SEGMENT), segments, k + first, in_group / (16 * BLOCKS), lane);
        }
    }
}
