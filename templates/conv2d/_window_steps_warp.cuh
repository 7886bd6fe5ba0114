#pragma once

// Steps of MMAs of a warp, of WARP_P output rows, out of a window of x in shared memory. Needs load_inputs, multiply and the family's constants.

// accumulators += the MMAs of the steps that lie in the same chunks of COUNT filter rows, or pairs of them (ODD): a row of input is
// loaded once for all of WARP_P output rows.
template <int COUNT, bool ODD>
__device__ __forceinline__ void add_steps(Accumulators& accumulators, const Chunk* inputs, const Filters* filters) {
    constexpr int LAST = (WARP_P - 1) * STRIDE_H + (R - 1) * DILATION_H;
    Filters loaded[COUNT][WARP_TILES_K / FILTER_TILES];
#pragma unroll
    for (int row = 0; row <= LAST; ++row) {
        Word pixels[4] = {};  // set: nvcc 13.0 crashes on some rows of which no output row is one
        bool first = true;
#pragma unroll
        for (int step = 0; step < COUNT; ++step) {
            const int begin = (ODD ? odd_row(step) : step) * DILATION_H;
            if (row == begin) {
#pragma unroll
                for (int j = 0; j < WARP_TILES_K / FILTER_TILES; ++j) {
                    loaded[step][j] = filters[(step * BLOCK_TILES / FILTER_TILES + j) * 32];
                }
            }
#pragma unroll
            for (int i = 0; i < WARP_P; ++i) {
                if (row != begin + i * STRIDE_H) continue;
                if (first) load_inputs(pixels, inputs + row * ROW_CHUNKS);
                first = false;
                // Of two parts small products first, but that of two small ones.
#pragma unroll
                for (int product = 2 * PARTS - 2; product >= 0; --product) {
#pragma unroll
                    for (int j = 0; j < WARP_TILES_K; ++j) {
                        const Word* const at = loaded[step][j / FILTER_TILES].at + j % FILTER_TILES * 2;
                        const Word filter[2] = {at[0], at[1]};
                        multiply(accumulators[i][j], pixels, filter, product);
                    }
                }
            }
        }
    }
}

// accumulators += a slice's channels, of a lane's column of taps.
__device__ __forceinline__ void add_slice(Accumulators& accumulators, const Chunk* taps, const Chunk* slice_filters, int group) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const Filters* const filters = reinterpret_cast<const Filters*>(slice_filters + group * (WARP_TILES_K * 16)) + lane;
    [[maybe_unused]] Accumulators partial;  // what a tensor core sums up, where it cuts off what does not fit
    Accumulators& sums = PROMOTES ? partial : accumulators;
    if constexpr (PROMOTES) clear(partial);
    // Lanes 0 to 15 load a step's first chunk of 16 columns, the others its second.
#pragma unroll UNROLL
    for (int i = 0; i < PAIRS; ++i) {
        if (PROMOTES && i > 0 && i % PROMOTED_PAIRS == 0) {
            promote_columns(accumulators, partial);
            clear(partial);
        }
        add_steps<R, false>(sums, taps + (lane < 16 ? chunk_at(2 * i) : chunk_at(2 * i + 1)),
                            filters + i * (R * BLOCK_TILES / FILTER_TILES * 32));
    }
    if constexpr (ODD_STEPS > 0) {
        add_steps<ODD_STEPS, true>(sums, taps + chunk_at(RUN_CHUNKS - 1) + (lane < 16 || R == 1 ? 0 : DILATION_H * ROW_CHUNKS),
                                   filters + PAIRS * (R * BLOCK_TILES / FILTER_TILES * 32));
    }
    if constexpr (PROMOTES) promote_columns(accumulators, partial);
}
