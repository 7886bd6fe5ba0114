#pragma once

// Filters of output channels one after the other, as floats in constant memory. Needs T and the family's constants.
__constant__ __align__(16) float const_filters[K * R * S];

extern "C" __global__ void pack_filters(const T* __restrict__ w, float* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i < K * R * S) packed_w[i] = to_float(w[i]);
}

__device__ __forceinline__ const float* filters_of(const T*, const float*, int first_k) { return const_filters + first_k * (R * S); }
