#pragma once

// Every thread keeps the registers that it begins with: what reallocates them, which the CPU has anyway, does nothing.
#ifdef __CUDACC__
template <int COUNT>
__device__ __forceinline__ void warpgroup_reg_alloc() {}

template <int COUNT>
__device__ __forceinline__ void warpgroup_reg_dealloc() {}
#endif
