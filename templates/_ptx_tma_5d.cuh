#pragma once
#include "_ptx_tma.cuh"

// tma_load and tma_store of a box of five dimensions.

#ifdef __CUDACC__
__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3, int c4) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(at)
        : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap* map, const void* shared, int c0, int c1, int c2, int c3, int c4) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map), "r"(c0), "r"(c1),
                 "r"(c2), "r"(c3), "r"(c4), "r"(from)
                 : "memory");
}
#endif
