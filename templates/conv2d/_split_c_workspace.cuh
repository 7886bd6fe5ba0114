#pragma once

constexpr int SPLITS = (C + CHANNELS - 1) / CHANNELS;

// Adds up the parts of one chunk of images, in the order of the channels, by WIDTH outputs a thread. Needs the family's constants.
extern "C" __global__ void __launch_bounds__(SWEEP_BLOCK)
conv2d_reduce(Input partial, Input bias, Output y, int n, int i) {
    using Outputs = AlignedArray<float, WIDTH>;
    const Chunk chunk = chunk_at(i, n);
    const long long outputs = static_cast<long long>(chunk.images) * (K * PIXELS);
    const long long first = (static_cast<long long>(blockIdx.x) * SWEEP_BLOCK + threadIdx.x) * WIDTH;
    if (first >= outputs) return;

    auto accumulator = *reinterpret_cast<const Outputs*>(partial + first);
#pragma unroll 4
    for (int split = 1; split < SPLITS; ++split) {
        const auto part = *reinterpret_cast<const Outputs*>(partial + split * outputs + first);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) accumulator.at[j] += part.at[j];
    }
    const int k = static_cast<int>(first / PIXELS % K);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) accumulator.at[j] = finish<EPILOGUE>(accumulator.at[j], bias, k);
    *reinterpret_cast<Outputs*>(y + static_cast<long long>(chunk.first_image) * (K * PIXELS) + first) = accumulator;
}
