#pragma once

// Blocks that run at the same time, of a kernel with __cluster_dims__, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// cluster_sync: waits for all threads of the cluster that have not ended; what they wrote to shared memory before is seen behind it. A
// block must not end while others read its shared memory.
// load_cluster: what lies in another block's shared memory where `shared` lies in this one's; V is four words.

#ifdef __CUDACC__
__device__ __forceinline__ void cluster_sync() {
#if __CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MINOR__ >= 8
    // Of shared memory alone: a release of all memory waits for what was written to DRAM, about a microsecond.
    asm volatile("fence.release.sync_restrict::shared::cta.cluster; barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait; fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
#else
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

template <class V>
__device__ __forceinline__ V load_cluster(const V* shared, int rank) {
    static_assert(sizeof(V) == 16, "of four words");
    const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    unsigned there, words[4];
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(there)
                 : "memory");
    V value;
    memcpy(&value, words, sizeof value);
    return value;
}
#else
#include <autotune_host_ptx.h>
#endif
