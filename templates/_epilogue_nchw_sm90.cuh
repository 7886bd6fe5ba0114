#pragma once

// The epilogue of NCHW: a warp stages the accumulators of its 16 output channels in shared memory, finishes them, and stores runs of outputs that
// are neighbours in y. Needs _element.cuh and _epilogue.cuh.

// Of outputs with CHANNELS channels, a plane of PLANE each, of which COLUMNS are staged at once.
template <class EPILOGUE, int CHANNELS, long long PLANE, int COLUMNS>
struct CollectiveEpilogueNchw {
    // Of a channel's floats: four neighbouring channels begin in other banks.
    static constexpr int PITCH = COLUMNS % 16 == 0 ? COLUMNS + 8 : COLUMNS, WARP_FLOATS = 16 * PITCH;

    // Stages COLUMNS columns of an MMA's accumulators, from the eight of `first` on.
    template <int TILES>
    __device__ __forceinline__ static void stage(float* staged, const float (&d)[TILES][4], int first, int lane) {
        __syncwarp();  // what was staged before has been stored
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const AlignedArray<float, 2> pair = {d[first + i][2 * half], d[first + i][2 * half + 1]};
                *reinterpret_cast<AlignedArray<float, 2>*>(staged + (half * 8 + lane / 4) * PITCH + i * 8 + lane % 4 * 2) = pair;
            }
        }
        __syncwarp();
    }
    // Stores a run of at most LONGEST outputs of the warp's channels, from `channel` on. `first` is where the run begins in channel 0 of y. Whole
    // lines of 32 outputs are stored, wherever in a line the run begins: partial sectors cost as much as several whole ones.
    template <int LONGEST>
    __device__ __forceinline__ static void store_run(const float* staged, float* __restrict__ y, [[maybe_unused]] const float* __restrict__ z,
                                                     const float* __restrict__ bias, int channel, long long first, int count, int lane) {
        constexpr int LINE = 32, LINES = (LONGEST + LINE - 2) / LINE + 1;
        float own_bias = 0.0f;  // of channel `lane`
        if (EPILOGUE::HAS_BIAS && channel + lane % 16 < CHANNELS) own_bias = bias[channel + lane % 16];
#pragma unroll 2
        for (int i = 0; i < 16; ++i) {
            if (channel + i >= CHANNELS) break;
            const long long begin = first + (channel + i) * PLANE;
            const float channel_bias = EPILOGUE::HAS_BIAS ? __shfl_sync(0xffffffffu, own_bias, i) : 0.0f;
            const int column = lane - static_cast<int>(begin % LINE);
#pragma unroll
            for (int line = 0; line < LINES; ++line) {
                const int at = column + line * LINE;
                if (at < 0 || at >= count) continue;
                const float sum = staged[i * PITCH + at];
                if constexpr (EPILOGUE::HAS_RESIDUAL) {
                    y[begin + at] = finish<EPILOGUE>(sum, channel_bias, z[begin + at]);
                } else {
                    y[begin + at] = finish<EPILOGUE>(sum, channel_bias);
                }
            }
        }
    }
};
