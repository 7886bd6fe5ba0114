#pragma once

// Asynchronous copies, as instructions on the GPU and as plain copies on the CPU; a barrier of some warps of a block.
//
// copy_async: BYTES (4, 8, 16) from global to shared memory; where `inside` is false nothing is read and zeros come.
// copy_async_first: the first `read` of BYTES; zeros come for the rest.
// A thread's copies since its last commit are a group; copy_async_wait<N> waits until at most N groups are under way.
// bulk_store (sm_90): contiguous bytes from shared to global memory, by one thread; bytes and both addresses are
// multiples of 16. What threads wrote must be made visible to it: fence_bulk in each of them, a barrier, bulk_store.
// sync_threads: as __syncthreads for THREADS threads, whole warps; `id`, 1 to 15, tells barriers of a block apart.
// arrive_threads counts as well, and does not wait.

#ifdef __CUDACC__
template <int BYTES>
__device__ __forceinline__ void copy_async_first(void* shared, const void* global, int read) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read)
                     : "memory");
    }
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside = true) {
    copy_async_first<BYTES>(shared, global, inside ? BYTES : 0);
}

template <int THREADS>
__device__ __forceinline__ void sync_threads(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void arrive_threads(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the calling thread's bulk stores, but for the latest GROUPS, have read their shared memory.
template <int GROUPS>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
