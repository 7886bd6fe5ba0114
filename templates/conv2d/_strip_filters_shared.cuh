#pragma once

// Filters of direct_strip in shared memory.
__device__ __forceinline__ int warp_group(int group) { return group; }

__device__ __forceinline__ const float* filters_of(const float* block_filters, int, int group) {
    return block_filters + group * FILTER_FLOATS;
}
