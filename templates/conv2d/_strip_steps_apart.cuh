#pragma once

// Steps of a warp's or a warpgroup's MMAs, whose inputs are loaded before, or with PREFETCH while those of the step before run. Needs multiply
// and the family's constants.

constexpr int SMALL = PARTS - 1;  // part of an element

// accumulators += the MMAs of one step, with a lane's first fragment of `filters`; `meanwhile` is done while they run.
template <int DEPTH, typename Meanwhile>
__device__ __forceinline__ void add_step(Accumulators& accumulators, const Inputs<DEPTH>& inputs, const Filters* __restrict__ filters,
                                         const Meanwhile& meanwhile) {
    constexpr int TAP_FILTERS = BLOCK_TILES * PARTS * 32;
    if constexpr (!SPLIT) {
        begin(accumulators);
#pragma unroll
        for (int s = 0; s < TAPS; ++s) {
            const Tap tap(filters + s * TAP_FILTERS);
#pragma unroll
            for (int j = 0; j < THREAD_Q; ++j) multiply<DEPTH>(accumulators[j], inputs.of[0][j * STRIDE_W + tap_column(s) * DILATION_W], tap);
        }
        finish_mmas(accumulators, meanwhile);
    } else {
#pragma unroll
        for (int first = 0; first < S; first += PROMOTED) {
            Accumulators parts;
            begin(parts);
            // What involves a small part comes first, so that nothing large is cut off while it is added.
#pragma unroll
            for (int s = first; s < min(first + PROMOTED, S); ++s) {
                const Tap big(filters + s * TAP_FILTERS), small(filters + s * TAP_FILTERS + 32);
#pragma unroll
                for (int j = 0; j < THREAD_Q; ++j) {
                    const int at = j * STRIDE_W + s * DILATION_W;
                    if (s == first) {
                        multiply<DEPTH, false>(parts[j], inputs.of[SMALL][at], big);
                    } else {
                        multiply<DEPTH>(parts[j], inputs.of[SMALL][at], big);
                    }
                    multiply<DEPTH>(parts[j], inputs.of[0][at], small);
                }
            }
#pragma unroll
            for (int s = first; s < min(first + PROMOTED, S); ++s) {
                const Tap big(filters + s * TAP_FILTERS);
#pragma unroll
                for (int j = 0; j < THREAD_Q; ++j) multiply<DEPTH>(parts[j], inputs.of[0][j * STRIDE_W + s * DILATION_W], big);
            }
            finish_mmas(parts, [&] {
                if (first + PROMOTED >= S) meanwhile();
            });
#pragma unroll
            for (int j = 0; j < THREAD_Q; ++j) promote(accumulators[j], parts[j]);
        }
    }
}

// accumulators += the steps of a slice of the channels.
__device__ __forceinline__ void add_slice(Accumulators& accumulators, const Word* const (&rows)[2], const Filters* step_filters, int lane) {
    Pair pairs[2] = {Pair(lane % 4), Pair(lane % 4 + 4)};
    constexpr int WHOLE = STEPS - LAST_IS_HALF;  // steps
    const auto nothing = [] {};
    if constexpr (PREFETCH == 1) {
        Inputs<8> even, odd;
        even.load(StepRows(rows, pairs));
        int i = 0;
#pragma unroll 1
        for (; i + 2 < WHOLE; i += 2) {
            add_step(accumulators, even, step_filters, [&] { odd.load(StepRows(rows, pairs)); });
            add_step(accumulators, odd, step_filters + STEP_FILTERS, [&] { even.load(StepRows(rows, pairs)); });
            step_filters += 2 * STEP_FILTERS;
        }
        if constexpr (WHOLE % 2 == 1) {
            add_step(accumulators, even, step_filters, nothing);
        } else {
            add_step(accumulators, even, step_filters, [&] { odd.load(StepRows(rows, pairs)); });
            add_step(accumulators, odd, step_filters + STEP_FILTERS, nothing);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < WHOLE; ++i) {
            Inputs<8> inputs;
            inputs.load(StepRows(rows, pairs));
            add_step(accumulators, inputs, step_filters, nothing);
            step_filters += STEP_FILTERS;
        }
    }
    if constexpr (LAST_IS_HALF) {
        Inputs<4> inputs;
        inputs.load(StepRows(rows, pairs));
        add_step(accumulators, inputs, step_filters, nothing);
    }
}
