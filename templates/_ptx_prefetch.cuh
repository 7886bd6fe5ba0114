#pragma once

// Memory brought to the second cache ahead of those who load it, as an instruction on the GPU. On the CPU it is read, so that an
// address outside an array is found.

#ifdef __CUDACC__
__device__ __forceinline__ void prefetch_l2(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }
#else
#include <autotune_host_ptx.h>
#endif
