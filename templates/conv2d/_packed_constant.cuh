#pragma once

// Filters of FILTER_FLOATS floats an output channel in constant memory. Needs packed.
__constant__ __align__(16) float const_filters[K * FILTER_FLOATS];

extern "C" __global__ void pack_filters(const float* __restrict__ w, float* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i < K * FILTER_FLOATS) packed_w[i] = packed(w, i);
}

__device__ __forceinline__ const float* filters_of(const float*) { return const_filters; }
