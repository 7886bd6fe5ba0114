#pragma once

// MMAs of pairs of columns, of 16-bit elements: a k block is eight taps, four words; an MMA takes two of them. Needs _words_*.cuh and the
// family's constants.

// A lane's taps of two pairs that begin at `pairs`. Taps that pad the last k block meet filters that are zero.
__device__ __forceinline__ void load_inputs(Inputs& inputs, const Word* const (&pairs)[2]) {
#pragma unroll
    for (int row = 0; row < THREAD_P + R - 1; ++row) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
            for (int i = 0; i < 2 * BLOCK_WORDS; ++i) {
                const int word = min(chunk * 4 + static_cast<int>(threadIdx.x % 4), S / 2);
                inputs[row][chunk][i] = pairs[i][row * PITCH + word];
            }
        }
    }
}

// accumulators = the MMAs of output row `row`.
__device__ __forceinline__ void multiply(float (&accumulators)[4], const Inputs& inputs, const Word (&filters)[FILTER_WORDS], int row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[i] = 0.0f;
#pragma unroll
    for (int k_block = 0; k_block + 1 < K_BLOCKS; k_block += 2) {
        const auto& first = inputs[row + k_block / CHUNKS][k_block % CHUNKS];
        const auto& second = inputs[row + (k_block + 1) / CHUNKS][(k_block + 1) % CHUNKS];
        const Word input[4] = {first[0], first[1], second[0], second[1]}, filter[2] = {filters[k_block], filters[k_block + 1]};
        mma_m16n8(accumulators, input, filter);
    }
    if constexpr (K_BLOCKS % 2 == 1) {
        mma_m16n8(accumulators, inputs[row + R - 1][CHUNKS - 1], filters[K_BLOCKS - 1]);
    }
}
