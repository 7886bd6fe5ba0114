#pragma once

// Steps of MMAs of a warp, of WARP_P output rows, out of a window of x in shared memory. Needs multiply and the family's constants.

// accumulators += the MMAs of the steps that lie in the same chunks of COUNT filter rows, or pairs of them (ODD): a row of input is
// loaded once for all of WARP_P output rows.
template <int COUNT, bool ODD>
__device__ __forceinline__ void add_steps(Accumulators& accumulators, const Chunk* inputs, const Filters* filters) {
    constexpr int LAST = (WARP_P - 1) * STRIDE_H + (R - 1) * DILATION_H;
    Filters loaded[COUNT][WARP_TILES_K / FILTER_TILES];
#pragma unroll
    for (int row = 0; row <= LAST; ++row) {
        unsigned pixels[4];
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
                if (first) load_matrices(pixels, inputs + row * ROW_CHUNKS);
                first = false;
#pragma unroll
                for (int j = 0; j < WARP_TILES_K; ++j) {
                    const unsigned* const at = loaded[step][j / FILTER_TILES].at + j % FILTER_TILES * 2;
                    const unsigned filter[2] = {at[0], at[1]};
                    multiply(accumulators[i][j], pixels, filter);
                }
            }
        }
    }
}
