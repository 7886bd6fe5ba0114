#pragma once

// Steps of a warpgroup's MMAs, whose inputs are loaded while they run, each into the registers of the step before. Needs multiply and the
// family's constants.

// accumulators += the MMAs of one step, a group for each column of the strips. While the last two groups run, the column of the one
// before is loaded anew from the next step's rows; those of a step's last two groups are loaded when the next step begins.
template <bool LAST>
__device__ __forceinline__ void add_step(Accumulators& accumulators, Inputs<8>& inputs, const Filters* __restrict__ filters,
                                         const StepRows& rows, const StepRows& next) {
    constexpr int TAP_FILTERS = BLOCK_TILES * PARTS * 32, RUNNING = 2;
#pragma unroll
    for (int i = 0; i < STRIP_INPUTS; ++i) {
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < TAPS; ++s) {
#pragma unroll
            for (int j = 0; j < THREAD_Q; ++j) {
                if (j * STRIDE_W + tap_column(s) * DILATION_W == i) multiply<8>(accumulators[j], inputs.of[0][i], filters + s * TAP_FILTERS);
            }
        }
        wgmma_commit();
        wgmma_wait_group<RUNNING>();
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            if (i < RUNNING) {
                inputs.load(rows, STRIP_INPUTS - RUNNING + i, word);
            } else if (!LAST) {
                inputs.load(next, i - RUNNING, word);
            }
        }
    }
}

// accumulators += the steps of a slice of the channels.
__device__ __forceinline__ void add_slice(Accumulators& accumulators, const Word* const (&rows)[2], const Filters* step_filters, int lane) {
    Pair pairs[2] = {Pair(lane % 4), Pair(lane % 4 + 4)};
    StepRows step_rows(rows, pairs);
    Inputs<8> inputs;
    inputs.load(step_rows);
    wgmma_begin(accumulators);
#pragma unroll 1
    for (int i = 1; i < STEPS; ++i) {
        const StepRows next(rows, pairs);
        add_step<false>(accumulators, inputs, step_filters, step_rows, next);
        step_rows = next;
        step_filters += STEP_FILTERS;
    }
    add_step<true>(accumulators, inputs, step_filters, step_rows, step_rows);
    wgmma_wait(accumulators);
}
