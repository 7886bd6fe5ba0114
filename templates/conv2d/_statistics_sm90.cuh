#pragma once
#include "_epilogue_sm90.cuh"

// The mean and variance of each image's output channels. The warps that staged a tile's outputs read them again, as they are stored, and write each
// channel's sums to their own place, which does not depend on the order of blocks; finish_statistics adds the sums of an image.
//
// Sums are of y - shift, where shift is an output of the same channel and tile, so that means far from 0 cancel no digits (Chan, Golub and LeVeque
// 1983). Needs the family's constants, and STATISTICS_SLICES, the places of an image.

// Of a channel's outputs in a tile, or of an image.
struct alignas(16) Sums {
    float count, shift, value, square;  // outputs, what is subtracted from each, sum of y - shift, sum of (y - shift)^2

    // Adds sums of other outputs with another shift.
    __device__ __forceinline__ void add(const Sums& other) {
        const float distance = other.shift - shift;
        count += other.count;
        value += fmaf(other.count, distance, other.value);
        square += other.square + distance * fmaf(other.count, distance, 2.0f * other.value);
    }
    // Adds those of the lane `lanes` away, which have the same shift.
    __device__ __forceinline__ void merge(int lanes) {
        count += __shfl_xor_sync(0xffffffffu, count, lanes);
        value += __shfl_xor_sync(0xffffffffu, value, lanes);
        square += __shfl_xor_sync(0xffffffffu, square, lanes);
    }
};

// A lane's part of a tile's statistics: of two neighbouring channels, every fourth pair of pixels; of a strip, pixels of two columns.
template <int COLUMNS>
struct TileStatistics {
    int column, row, first;  // of the tile's outputs, and the first pixel of the warpgroup's
    Sums sums[2] = {};

    // Whether all of the tile's pixels are of the image, or one is; the others are padding between rows or below.
    __device__ __forceinline__ bool is_whole() const {
        return !WINDOWED || (STRIP && column + 8 <= Q && row + TILE_N / 8 <= P);
    }
    __device__ __forceinline__ bool exists(int pixel) const {
        if constexpr (STRIP) return column + pixel % 8 < Q && row + pixel / 8 < P;
        return pixel % PITCH < Q && pixel / PITCH < WINDOW_ROWS && row + pixel / PITCH < P;
    }
    // Adds a subtile of 64 channels, which begins `further` pixels on, rows of 128 bytes, swizzled. A warp reads 16 channels, and all banks.
    template <bool WHOLE>
    __device__ __forceinline__ void add(const unsigned char* outputs, int further, int warp, int lane) {
        const int pair = warp % 4 * 8 + lane % 8;  // of channels
        const auto output = [&](int pixel) {
            unsigned word;
            memcpy(&word, outputs + pixel * 128 + (pair / 4 ^ pixel % 8) * 16 + pair % 4 * 4, sizeof word);
            return word;
        };
        if (further == 0) {
            const unsigned word = output(0);
            sums[0].shift = element<T>(word, 0), sums[1].shift = element<T>(word, 1);
        }
        float count = 0.0f;
#pragma unroll
        for (int step = 0; step < COLUMNS / 4; ++step) {
            const int pixel = step / 2 * 8 + lane / 8 * 2 + step % 2;
            if (!WHOLE && !exists(first + further + pixel)) continue;
            const unsigned word = output(pixel);
            count += 1.0f;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float shifted = element<T>(word, i) - sums[i].shift;
                sums[i].value += shifted;
                sums[i].square = fmaf(shifted, shifted, sums[i].square);
            }
        }
        sums[0].count += count, sums[1].count += count;
    }
    __device__ __forceinline__ void add(const unsigned char* outputs, int further, int warp, int lane) {
        if (is_whole()) {
            add<true>(outputs, further, warp, lane);
        } else {
            add<false>(outputs, further, warp, lane);
        }
    }
    // Writes the sums of the channels from `channel` on, where they exist, to the tile's place.
    __device__ __forceinline__ void write(Sums* place, int channel, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sums[i].merge(8);
            sums[i].merge(16);
            const int own = channel + warp % 4 * 16 + lane % 8 * 2 + i;
            if (lane < 8 && own < K) place[own] = sums[i];
            sums[i] = {};
        }
    }
};

// A CollectiveEpilogue that adds each staged subtile to the tile's statistics.
template <class EPILOGUE_TMA, int BLOCKS, int SUBTILES, int COLUMNS, int STAGES>
struct EpilogueWithStatistics : EPILOGUE_TMA {
    static_assert(EPILOGUE_TMA::BOXES == 1, "a subtile is one box");

    // Stores a tile; goes on with the epilogue stage `stage`.
    template <int TILES>
    __device__ __forceinline__ static void store(const float (&d)[BLOCKS][TILES][4], const float (&biases)[BLOCKS][2], unsigned char* stages,
                                                 int& stage, const TensorMap& map, int channel, const Place& at, int consumer, int warp, int lane,
                                                 TileStatistics<COLUMNS> statistics, Sums* place) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < SUBTILES; ++subtile) {
                if (threadIdx.x % 128 == 0) bulk_store_wait_read<STAGES - 1>();
                sync_threads<128>(1 + consumer);
                unsigned char* const to = stages + stage * EPILOGUE_TMA::STAGE_BYTES;
                EPILOGUE_TMA::store_subtile(d[i], biases[i], to, subtile, map, channel + i * 64, at.column, at.row, at.image, consumer, warp, lane);
                statistics.add(to, subtile * COLUMNS, warp, lane);
                stage ^= STAGES - 1;
            }
            statistics.write(place, channel + i * 64, warp, lane);
        }
    }
    // Stores a tile whose residual is being loaded, and loads what is left of that.
    template <int TILES, class Load>
    __device__ __forceinline__ static void store(const float (&d)[BLOCKS][TILES][4], const float (&biases)[BLOCKS][2], unsigned char* stages,
                                                 PipelineState<STAGES>& state, Barrier* full, const Load& load_subtile, const TensorMap& map,
                                                 int channel, const Place& at, int consumer, int warp, int lane,
                                                 TileStatistics<COLUMNS> statistics, Sums* place) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < SUBTILES; ++subtile, ++state) {
                barrier_wait(full + state.index, state.phase);
                unsigned char* const to = stages + state.index * EPILOGUE_TMA::STAGE_BYTES;
                EPILOGUE_TMA::store_subtile(d[i], biases[i], to, subtile, map, channel + i * 64, at.column, at.row, at.image, consumer, warp, lane);
                statistics.add(to, subtile * COLUMNS, warp, lane);
                sync_threads<128>(1 + consumer);  // before the next residual, or that of the next tile, overwrites the outputs
                const int next = i * SUBTILES + subtile + STAGES;
                if (threadIdx.x % 128 == 0 && next < BLOCKS * SUBTILES) {
                    bulk_store_wait_read<0>();
                    load_subtile(next, state.index);
                }
            }
            statistics.write(place, channel + i * 64, warp, lane);
        }
    }
};

// A block adds the sums of two channels of an image: FINISHING_THREADS threads each those of some slices, then each other's, in the same order in
// every run.
constexpr int FINISHED_CHANNELS = 2, FINISHING_THREADS = 512, FINISHING_WARPS = FINISHED_CHANNELS * FINISHING_THREADS / 32;

extern "C" __global__ void __launch_bounds__(FINISHED_CHANNELS * FINISHING_THREADS)
finish_statistics(const Sums* __restrict__ workspace, float* __restrict__ mean, float* __restrict__ variance) {
    extern __shared__ __align__(1024) unsigned char smem[];
    auto& of_warps = *reinterpret_cast<Sums (*)[FINISHING_WARPS][FINISHED_CHANNELS]>(smem);
    constexpr int BLOCKS = (K + FINISHED_CHANNELS - 1) / FINISHED_CHANNELS, LANES = 32 / FINISHED_CHANNELS;
    const long long image = blockIdx.x / BLOCKS;
    const int channel = blockIdx.x % BLOCKS * FINISHED_CHANNELS + static_cast<int>(threadIdx.x), thread = static_cast<int>(threadIdx.y);
    const Sums* const slices = workspace + image * STATISTICS_SLICES * K + min(channel, K - 1);
    Sums sums = {0.0f, slices->shift, 0.0f, 0.0f};
#pragma unroll 8
    for (int slice = thread; slice < STATISTICS_SLICES; slice += FINISHING_THREADS) sums.add(slices[static_cast<long long>(slice) * K]);
#pragma unroll
    for (int lanes = FINISHED_CHANNELS; lanes < 32; lanes *= 2) sums.merge(lanes);
    if (thread % LANES == 0) of_warps[thread / LANES][threadIdx.x] = sums;
    __syncthreads();
    if (thread >= LANES) return;  // all but the first warp
    sums = of_warps[thread][threadIdx.x];
#pragma unroll
    for (int warp = LANES; warp < FINISHING_WARPS; warp += LANES) sums.add(of_warps[thread + warp][threadIdx.x]);
#pragma unroll
    for (int lanes = FINISHED_CHANNELS; lanes < 32; lanes *= 2) sums.merge(lanes);
    if (thread > 0 || channel >= K) return;
    const float shifted = sums.value / sums.count, square = sums.square / sums.count - shifted * shifted;
    mean[image * K + channel] = sums.shift + shifted;
    variance[image * K + channel] = square < 0.0f ? 0.0f : square;  // which keeps a NaN
}
