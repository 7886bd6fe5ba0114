#pragma once

// A tensor map brought to the cache of descriptors before the first load that needs it, by one thread. On the CPU it is nothing.

#ifdef __CUDACC__
__device__ __forceinline__ void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
#else
inline void prefetch_map(const TensorMap&) {}
#endif
