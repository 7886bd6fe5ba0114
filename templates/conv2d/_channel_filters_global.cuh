#pragma once

// Filters of output channels one after the other, where they lie in w. Needs T.
__device__ __forceinline__ const T* filters_of(const T* __restrict__ w, const float*, int) { return w; }
