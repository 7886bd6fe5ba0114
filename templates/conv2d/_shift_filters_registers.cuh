#pragma once

// A lane's part of the filters of all steps in registers. Needs Step, Part and the family's constants.

constexpr int STEPS = Part<0>::STEPS;
using Filters = Word[STEPS][4];

__device__ __forceinline__ void load_filters(Filters& filters, const Chunk* __restrict__ packed_w, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
        const Step step = step_of<Part<0>>(i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = step.filters + j / 2 * step.filters_deeper + (warp % 4 * 2 + j % 2) * STORED + lane / 4;
            filters[i][j] = packed_w[row].words[lane % 4];
        }
    }
}

#ifdef __CUDACC__
__device__ __forceinline__ const Word (&operand_of(const Filters& filters, const Step&, int index))[4] { return filters[index]; }
#endif
