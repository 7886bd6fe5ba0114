#pragma once

// Copies of boxes of a tensor by the Tensor Memory Accelerator, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
// Needs _ptx_barrier.cuh, and _ptx.cuh for stores.
//
// TensorMap: a tensor's address, extents, box and swizzle, as the driver encodes them (CUtensorMap): a kernel's parameter
// `const __grid_constant__ TensorMap`. Coordinates count elements, the innermost first; what lies outside of the tensor is read as
// zeros and not written. `shared` is aligned to 1024 bytes; a swizzle of 128 bytes exchanges the 16-byte chunks of a row of 128
// bytes: chunk i of row j lies at i ^ (j % 8).
// tma_load completes the whole box's bytes at the barrier, as bulk_load does. tma_load_im2col reads pixels as a convolution's
// window moves over them: of the box's pixels the first one's window begins at (w, h, n), the next one's a stride further on, in the
// next row or image where a row or an image ends; `s` and `r` are the tap's offsets in the window. With depth `d` and `t`, rows, frames
// and videos end in the same way, and so does a signal without rows.
// tma_store writes a box, as bulk_store does: fence_bulk before, bulk_store_commit and bulk_store_wait_read after it.
// store_staged: words of such a box, into shared memory.

#ifdef __CUDACC__
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void prefetch_tma_descriptor(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(at)
                 : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(at)
        : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(at)
        : "memory");
}

__device__ __forceinline__ void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int n, int s) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5], {%6};" ::"r"(to),
        "l"(map), "r"(c), "r"(w), "r"(n), "r"(at), "h"(static_cast<unsigned short>(s))
        : "memory");
}

__device__ __forceinline__ void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int h, int n, int s,
                                                int r) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], "
        "{%7, %8};" ::"r"(to),
        "l"(map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(at), "h"(static_cast<unsigned short>(s)), "h"(static_cast<unsigned short>(r))
        : "memory");
}

__device__ __forceinline__ void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int h, int d, int n,
                                                int s, int r, int t) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7], "
        "{%8, %9, %10};" ::"r"(to),
        "l"(map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "r"(at), "h"(static_cast<unsigned short>(s)),
        "h"(static_cast<unsigned short>(r)), "h"(static_cast<unsigned short>(t))
        : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap* map, const void* shared, int c0, int c1) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(c0), "r"(c1), "r"(from)
                 : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap* map, const void* shared, int c0, int c1, int c2, int c3) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map), "r"(c0), "r"(c1),
                 "r"(c2), "r"(c3), "r"(from)
                 : "memory");
}

template <typename Words>
__device__ __forceinline__ void store_staged(Words* to, const Words& words) {
    *to = words;
}
#else
#include <autotune_host_tma.h>
#endif
