#pragma once

// Asynchronous copies and barriers, as instructions on the GPU (sm_90) and as plain C++ on the CPU. Needs _ptx_barrier.cuh.
//
// copy_async_arrive: an arrival at a barrier that comes by itself when all copies are there that the thread started by copy_async.

#ifdef __CUDACC__
__device__ __forceinline__ void copy_async_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
