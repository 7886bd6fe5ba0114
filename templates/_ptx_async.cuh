#pragma once

// Waiting for less than all that is under way, as instructions on the GPU (sm_90, products sm_90a) and as plain C++ on the
// CPU. Needs _ptx_barrier.cuh.
//
// copy_async_arrive: an arrival at a barrier that comes by itself when all copies are there that the thread started by copy_async.
// wgmma_wait_all_but_last: waits for the products started before the last wgmma_commit but one. Their a may be touched then,
// their sums only where no products under way add to them.

#ifdef __CUDACC__
__device__ __forceinline__ void copy_async_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}

__device__ __forceinline__ void wgmma_wait_all_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
#else
#include <autotune_host_ptx.h>
#endif
