#pragma once

// Copies to several blocks of a cluster at once, and arrivals at another block's barrier, as instructions on the GPU (sm_90) and as plain
// C++ on the CPU. Needs _ptx_tma.cuh.
//
// tma_load_multicast: as tma_load, but to the same place in the shared memory of all blocks whose bits are set in `blocks`; each
// has the bytes completed at its own barrier, which lies where `barrier` does in this one. All of them must be done with what was there.
// barrier_arrive_cluster: barrier_arrive at the barrier of the cluster's block `rank`, this one's or another's, which must not have ended.
// It releases what the block reads, as CUTLASS's ClusterBarrier does: a release of the cluster's scope is a fence of all memory, a microsecond.

#ifdef __CUDACC__
__device__ __forceinline__ void tma_load_multicast(void* shared, const TensorMap* map, Barrier* barrier, int blocks, int c0, int c1,
                                                   int c2) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], "
        "%6;" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(at), "h"(static_cast<unsigned short>(blocks))
        : "memory");
}

__device__ __forceinline__ void barrier_arrive_cluster(Barrier* barrier, int rank) {
    const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(
            here),
        "r"(rank)
        : "memory");
}
#else
#include <autotune_host_tma.h>
#endif
