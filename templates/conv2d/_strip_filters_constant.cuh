#pragma once

// Filters of direct_strip in constant memory. Needs packed and the family's constants.
__constant__ __align__(16) float const_filters[PACKED_FILTERS];

extern "C" __global__ void pack_filters(const float* __restrict__ w, float* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i < PACKED_FILTERS) packed_w[i] = packed<K / THREAD_K>(w, 0, i);
}

// The same for a warp's lanes, and seen to be: the filters are then read to uniform registers.
__device__ __forceinline__ int warp_group(int group) { return __shfl_sync(0xffffffffu, group, 0); }

__device__ __forceinline__ const float* filters_of(const float*, int block_k, int group) {
    return const_filters + (block_k / THREAD_K + group) * FILTER_FLOATS;
}
