#pragma once

// Filters that are read from constant memory, a copy of w of K output channels of TAPS taps. Needs T and these constants.
__constant__ __align__(16) T w_const[K * TAPS];

__device__ __forceinline__ const T* filters_of(const T*) { return w_const; }
