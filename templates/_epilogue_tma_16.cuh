#pragma once
#include "_ptx_stmatrix.cuh"

#include "_ptx_ldmatrix_trans.cuh"

// Accumulators of a warpgroup's MMAs, whose rows are output channels and whose columns are pixels, into shared memory, from where TMA
// stores them. Needs _epilogue.cuh and an element type of 16 bits.

template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
    const AlignedArray<T, 2> pair = {from_float<T>(low), from_float<T>(high)};
    unsigned word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

template <typename T>
__device__ __forceinline__ float element(unsigned word, int i) {
    AlignedArray<T, 2> pair;
    memcpy(&pair, &word, sizeof word);
    return to_float(pair.at[i]);
}

// Finishes a part of an MMA's accumulators, PIXELS columns from the eight of `first` on, and stages them: a pixel's 64 channels in a row,
// swizzled, or as two boxes, each 32 channels a row. `warp` is the warp's number in its warpgroup; `bias` is that of its channel lane / 4, and of the eighth after it.
// Where the epilogue adds a residual, it lies where the outputs will, and a mask behind them.
template <typename T, class EPILOGUE, int PIXELS, int BOX_CHANNELS = 64, int TILES>
__device__ __forceinline__ void stage_outputs(unsigned char* to, const float (&d)[TILES][4], int first, const float (&bias)[2], int warp,
                                              int lane) {
    // Lane 8 i + j stores a pixel's eight channels as row j of matrix i: of eight pixels the warp's first eight channels and its last.
    constexpr int ROW_BYTES = 2 * BOX_CHANNELS, SWIZZLED = 128 / ROW_BYTES;  // of a box; neighbouring rows whose chunks change places alike
    static_assert(BOX_CHANNELS == 64 || BOX_CHANNELS == 32, "rows are a swizzle's");
    unsigned char* const box = BOX_CHANNELS == 64 ? to : to + warp / 2 * (PIXELS * ROW_BYTES);
    const int part = BOX_CHANNELS == 64 ? warp : warp % 2;
    unsigned char* const column = box + (lane / 16 * 8 + lane % 8) * ROW_BYTES + ((part * 2 + lane / 8 % 2) ^ lane % 8 / SWIZZLED) * 16;
    constexpr int MASK = 64 * PIXELS * static_cast<int>(sizeof(T));  // bytes from an output to its mask
    const auto word = [&](int tile, int half, unsigned z, unsigned mask) {
        const float* const accumulators = d[first + tile] + 2 * half;
        if constexpr (EPILOGUE::HAS_MASK) {
            const auto masked = [&](int i) {
                return element<T>(mask, i) > 0.0f ? finish<EPILOGUE>(accumulators[i], bias[half], element<T>(z, i)) : 0.0f;
            };
            return pack<T>(masked(0), masked(1));
        } else if constexpr (EPILOGUE::HAS_RESIDUAL) {
            return pack<T>(finish<EPILOGUE>(accumulators[0], bias[half], element<T>(z, 0)),
                           finish<EPILOGUE>(accumulators[1], bias[half], element<T>(z, 1)));
        } else {
            return pack<T>(finish<EPILOGUE>(accumulators[0], bias[half]), finish<EPILOGUE>(accumulators[1], bias[half]));
        }
    };
#pragma unroll
    for (int tile = 0; tile < PIXELS / 16 * 2; tile += 2) {
        unsigned z[4] = {}, mask[4] = {};
        if constexpr (EPILOGUE::HAS_RESIDUAL) load_matrices_trans(z, column + tile * (8 * ROW_BYTES));
        if constexpr (EPILOGUE::HAS_MASK) load_matrices_trans(mask, column + tile * (8 * ROW_BYTES) + MASK);
        store_matrices_trans(column + tile * (8 * ROW_BYTES), {word(tile, 0, z[0], mask[0]), word(tile, 1, z[1], mask[1]),
                                                               word(tile + 1, 0, z[2], mask[2]), word(tile + 1, 1, z[3], mask[3])});
    }
    if constexpr (PIXELS % 16 > 0) {
        constexpr int LAST = PIXELS / 8 - 1;
        // Lanes of the first two matrices give the addresses.
        unsigned char* const last = box + (LAST * 8 + lane % 8) * ROW_BYTES + ((part * 2 + lane / 8 % 2) ^ lane % 8 / SWIZZLED) * 16;
        unsigned z[2] = {}, mask[2] = {};
        if constexpr (EPILOGUE::HAS_RESIDUAL) load_matrices_trans(z, last);
        if constexpr (EPILOGUE::HAS_MASK) load_matrices_trans(mask, last + MASK);
        store_matrices_trans(last, {word(LAST, 0, z[0], mask[0]), word(LAST, 1, z[1], mask[1])});
    }
}
