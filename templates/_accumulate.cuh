#pragma once

// Outputs that many threads add to: what they hold before the first addition, and what is done to them after the last.
// A thread takes WIDTH neighbouring outputs of one output channel, as one access. Needs _element.cuh and _epilogue.cuh.

// Outputs start as their output channel's bias, or zero.
template <int CHANNELS, int PIXELS, int WIDTH, class EPILOGUE>
__device__ __forceinline__ void init_outputs(float* y, const float* bias, long long first) {
    const int k = static_cast<int>(first / PIXELS % CHANNELS);
    float start = 0.0f;
    if constexpr (EPILOGUE::HAS_BIAS) start += to_float(bias[k]);
    AlignedArray<float, WIDTH> outputs;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) outputs.at[i] = start;
    *reinterpret_cast<AlignedArray<float, WIDTH>*>(y + first) = outputs;
}

// The activation, once everything is added.
template <int WIDTH, class EPILOGUE>
__device__ __forceinline__ void activate_outputs(float* y, long long first) {
    auto outputs = *reinterpret_cast<const AlignedArray<float, WIDTH>*>(y + first);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) outputs.at[i] = EPILOGUE::activate(outputs.at[i]);
    *reinterpret_cast<AlignedArray<float, WIDTH>*>(y + first) = outputs;
}
