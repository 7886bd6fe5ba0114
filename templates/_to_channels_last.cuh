#pragma once

// A copy of x [N, C, D * H, W] with its channels last. Rows may be cut into COPY_SEGMENTS segments of COPY_W columns, COPY_STEP apart, the first of
// them COPY_LEFT columns in front of x, with zeros for columns that x lacks: [N, SEGMENTS, D * H, COPY_W, C]. Needs the family's constants.

// A block copies COPY_PIXELS pixels of COPY_TILE_C channels through shared memory, reading rows of pixels and writing rows of channels.
extern "C" __global__ void __launch_bounds__(256) to_channels_last(const float* __restrict__ x, float* __restrict__ copy, int n) {
    constexpr int TILE_C = 32, TILE_PIXELS = 128, THREADS = 256, VECTOR = 4;
    constexpr int CHANNEL_TILES = (COPY_C + TILE_C - 1) / TILE_C;
    constexpr int SEGMENT = COPY_ROWS * COPY_W, PIXELS = COPY_SEGMENTS * SEGMENT, PIXEL_TILES = (PIXELS + TILE_PIXELS - 1) / TILE_PIXELS;
    // Rows begin in neighbouring banks, so that a warp's stores and its loads of four channels of eight neighbours meet all of them.
    extern __shared__ __align__(1024) unsigned char smem[];
    auto& tile = *reinterpret_cast<float(*)[TILE_C][TILE_PIXELS + 1]>(smem);
    const int index = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int first_channel = index % CHANNEL_TILES * TILE_C, first = index / CHANNEL_TILES % PIXEL_TILES * TILE_PIXELS;
    const long long image = index / (CHANNEL_TILES * PIXEL_TILES);
    if (image >= n) return;
    const int own = thread % TILE_PIXELS, pixel = first + own;
    const int column = pixel % COPY_W + pixel / SEGMENT * COPY_STEP - COPY_LEFT, row = pixel % SEGMENT / COPY_W;
    const bool inside = pixel < PIXELS && column >= 0 && column < COPY_ROW;
    const float* const from = x + ((image * COPY_C + first_channel) * COPY_ROWS + row) * COPY_ROW + column;
#pragma unroll
    for (int i = 0; i < TILE_C; i += THREADS / TILE_PIXELS) {
        const int channel = i + thread / TILE_PIXELS;
        float value = 0.0f;
        if (inside && first_channel + channel < COPY_C) value = from[static_cast<long long>(channel) * (COPY_ROWS * COPY_ROW)];
        tile[channel][own] = value;
    }
    __syncthreads();
    constexpr int ROW_VECTORS = (COPY_C < TILE_C ? COPY_C : TILE_C) / VECTOR;
#pragma unroll
    for (int i = thread; i < TILE_PIXELS * ROW_VECTORS; i += THREADS) {
        const int channel = i % ROW_VECTORS * VECTOR, at = i / ROW_VECTORS;
        if (first + at >= PIXELS || first_channel + channel >= COPY_C) continue;
        AlignedArray<float, VECTOR> channels;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) channels.at[j] = tile[channel + j][at];
        *reinterpret_cast<AlignedArray<float, VECTOR>*>(copy + (image * PIXELS + first + at) * COPY_C + first_channel + channel) = channels;
    }
}
