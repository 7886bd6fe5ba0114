#pragma once

// Filters that the block packs into shared memory.
__device__ __forceinline__ const float* filters_of(const float* shared) { return shared; }
