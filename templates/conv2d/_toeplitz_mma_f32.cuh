#pragma once

// MMAs of pairs of columns, of f32: a k block is eight taps, rounded to TF32. Needs _words_f32.cuh and the family's constants.

// A lane's taps of two pairs that begin at `pairs`. Taps that pad the last k block meet filters that are zero.
__device__ __forceinline__ void load_inputs(Inputs& inputs, const Word* const (&pairs)[2]) {
#pragma unroll
    for (int row = 0; row < THREAD_P + R - 1; ++row) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
            for (int i = 0; i < 2 * BLOCK_WORDS; ++i) {
                const int tap = min(chunk * 8 + i / 2 * 4 + static_cast<int>(threadIdx.x % 4), S);
                inputs[row][chunk][i] = rounded(pairs[i % 2][row * PITCH + tap]);
            }
        }
    }
}

// accumulators = the MMAs of output row `row`.
__device__ __forceinline__ void multiply(float (&accumulators)[4], const Inputs& inputs, const Word (&filters)[FILTER_WORDS], int row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[i] = 0.0f;
#pragma unroll
    for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
        const Word filter[2] = {filters[k_block * 2], filters[k_block * 2 + 1]};
        mma_m16n8(accumulators, inputs[row + k_block / CHUNKS][k_block % CHUNKS], filter);
    }
}
