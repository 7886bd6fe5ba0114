#pragma once

// A block's inputs, from its first plane's first row on: read where they lie in x. Needs T and the family's constants.

__device__ __forceinline__ const T* copy_inputs(unsigned char*, const T* __restrict__ x, int first_plane, int, int) {
    return x + static_cast<long long>(first_plane) * (H * W);
}

// For filters in shared memory alone.
__device__ __forceinline__ void wait_for_inputs(unsigned char*) {
    if constexpr (SHARED_FILTERS) __syncthreads();
}
