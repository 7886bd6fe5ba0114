#pragma once

// Filters that the family stages in shared memory, out of w. Needs T.
__device__ __forceinline__ const T* filters_of(const T* w) { return w; }
