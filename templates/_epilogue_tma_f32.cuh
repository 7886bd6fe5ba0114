#pragma once

// As _epilogue_tma_16.cuh, for outputs of 32 bits. Needs _epilogue.cuh and _ptx_tma.cuh.

// Finishes a part of an MMA's accumulators, PIXELS columns from the eight of `first` on, and stages them as two boxes, each a pixel's 32
// channels in a row, swizzled. `warp` is the warp's number in its warpgroup; `bias` is that of its channel lane / 4, and of the eighth
// after it. Where the epilogue adds a residual, it lies where the outputs will, and a mask behind them.
template <typename T, class EPILOGUE, int PIXELS, int BOX_CHANNELS = 32, int TILES>
__device__ __forceinline__ void stage_outputs(unsigned char* to, const float (&d)[TILES][4], int first, const float (&bias)[2], int warp,
                                              int lane) {
    static_assert(BOX_CHANNELS == 32, "rows are 128 bytes");
    // Of eight pixels a lane has two neighbours, in two channels: the lanes' words of one instruction lie in 32 banks.
    unsigned char* words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int pixel = lane % 4 * 2 + i % 2, channel = warp % 2 * 16 + i / 2 * 8 + lane / 4;
        words[i] = to + warp / 2 * (PIXELS * 128) + pixel * 128 + (channel / 4 ^ pixel) * 16 + channel % 4 * 4;
    }
#pragma unroll
    for (int tile = 0; tile < PIXELS / 8; ++tile) {
        float z[4] = {};
        if constexpr (EPILOGUE::HAS_RESIDUAL) {
#pragma unroll
            for (int i = 0; i < 4; ++i) z[i] = *reinterpret_cast<const float*>(words[i] + tile * (8 * 128));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float accumulator = d[first + tile][i];
            float output;
            if constexpr (EPILOGUE::HAS_RESIDUAL) {
                output = finish<EPILOGUE>(accumulator, bias[i / 2], z[i]);
            } else {
                output = finish<EPILOGUE>(accumulator, bias[i / 2]);
            }
            if constexpr (EPILOGUE::HAS_MASK) {
                constexpr int MASK = 64 * PIXELS * static_cast<int>(sizeof(T));  // bytes from an output to its mask
                if (!(*reinterpret_cast<const float*>(words[i] + tile * (8 * 128) + MASK) > 0.0f)) output = 0.0f;
            }
            store_staged(reinterpret_cast<float*>(words[i] + tile * (8 * 128)), output);
        }
    }
}
