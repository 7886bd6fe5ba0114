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
    // Stores `count` outputs, at most LONGEST, that are STEP apart in y, the first one at `begin`; sum(i) is the i-th one's. Whole lines of 32 outputs
    // are stored, wherever in a line the first one lies: partial sectors cost as much as several whole ones.
    template <int LONGEST, int STEP = 1, class Sum>
    __device__ __forceinline__ static void store_line(float* __restrict__ y, [[maybe_unused]] const float* __restrict__ z, float bias, long long begin,
                                                      int count, int lane, const Sum& sum) {
        constexpr int LINE = 32, LINES = (LONGEST + LINE - 2) / LINE + 1;
        const int first = lane - static_cast<int>(begin % LINE);
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int i = first + line * LINE;
            if (i < 0 || i >= count) continue;
            const long long at = begin + i * STEP;
            if constexpr (EPILOGUE::HAS_RESIDUAL) {
                y[at] = finish<EPILOGUE>(sum(i), bias, z[at]);
            } else {
                y[at] = finish<EPILOGUE>(sum(i), bias);
            }
        }
    }
    // Stores a run of at most LONGEST outputs of the warp's channels, from `channel` on. `first` is where the run begins in channel 0 of y.
    template <int LONGEST>
    __device__ __forceinline__ static void store_run(const float* staged, float* __restrict__ y, const float* __restrict__ z, const float* __restrict__ bias,
                                                     int channel, long long first, int count, int lane) {
        float own_bias = 0.0f;  // of channel `lane`
        if (EPILOGUE::HAS_BIAS && channel + lane % 16 < CHANNELS) own_bias = bias[channel + lane % 16];
#pragma unroll 2
        for (int i = 0; i < 16; ++i) {
            if (channel + i >= CHANNELS) break;
            const float channel_bias = EPILOGUE::HAS_BIAS ? __shfl_sync(0xffffffffu, own_bias, i) : 0.0f;
            store_line<LONGEST>(y, z, channel_bias, first + (channel + i) * PLANE, count, lane, [&](int at) { return staged[i * PITCH + at]; });
        }
    }
};
