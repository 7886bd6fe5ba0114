#pragma once

// Bytes brought to the second cache ahead of those who load them, as an instruction on the GPU (sm_90); nothing on the CPU.
//
// bulk_fetch: whole vectors of 16 bytes that begin in the `bytes` from a pointer on, but for one at the end.

#ifdef __CUDACC__
__device__ __forceinline__ void bulk_fetch(const void* global, int bytes) {
    const unsigned long long begin = (reinterpret_cast<unsigned long long>(global) + 15) / 16 * 16;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"((bytes - 15) / 16 * 16) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
