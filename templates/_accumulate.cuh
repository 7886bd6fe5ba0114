#pragma once

// Outputs that many threads add to: what they hold before the first addition, and what is done to them after the last.
// A thread takes WIDTH neighbouring outputs of one map, as one access. Needs _element.cuh and _epilogue.cuh.

// Outputs start as their map's bias, or zero.
template <int MAPS, int PIXELS, int WIDTH, bool WITH_BIAS>
__device__ __forceinline__ void begin_outputs(float* y, const float* bias, long long first) {
    const int map = static_cast<int>(first / PIXELS % MAPS);
    const float start = epilogue<WITH_BIAS, false>(0.0f, bias, map);
    Neighbours<float, WIDTH> outputs;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) outputs.at[i] = start;
    *reinterpret_cast<Neighbours<float, WIDTH>*>(y + first) = outputs;
}

// The rectifier, once everything is added.
template <int WIDTH>
__device__ __forceinline__ void rectify_outputs(float* y, long long first) {
    auto outputs = *reinterpret_cast<const Neighbours<float, WIDTH>*>(y + first);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) outputs.at[i] = epilogue<false, true, float>(outputs.at[i], nullptr, 0);
    *reinterpret_cast<Neighbours<float, WIDTH>*>(y + first) = outputs;
}
