#pragma once

// Barriers that are objects, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// Barrier: an object in shared memory that lets threads wait for others, and for copies, without stopping those
// they wait for. One thread calls barrier_init with the arrivals of a phase; barrier_init_fence and __syncthreads then show
// it to all. Phases are numbered from 0; barrier_wait(b, i & 1) returns once phase i is complete, and must be called before
// phase i + 1 is. bulk_load copies contiguous bytes from global to shared memory, as bulk_store aligned; the phase of its
// barrier completes when the bytes that an arrival by barrier_arrive_expect announced are there, too. Threads that have read
// what a later copy overwrites call fence_bulk before they say so: a load that still waits for its turn reads the new bytes.

#ifdef __CUDACC__
struct alignas(8) Barrier {
    unsigned long long state;
};

__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

// An arrival where `arrives`, without a branch.
__device__ __forceinline__ void barrier_arrive_if(Barrier* barrier, bool arrives) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(at),
                 "r"(static_cast<unsigned>(arrives))
                 : "memory");
}

// An arrival; whether it completed the phase. What the others wrote before they arrived is visible to the last.
__device__ __forceinline__ bool barrier_arrive_last(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned last;
    asm volatile(
        "{ .reg .b64 before; .reg .u32 awaited; .reg .pred p, passed; mbarrier.arrive.shared::cta.b64 before, [%1]; "
        "mbarrier.pending_count.b64 awaited, before; setp.eq.u32 p, awaited, 1; "
        "@p mbarrier.test_wait.shared::cta.b64 passed, [%1], before; selp.u32 %0, 1, 0, p; }"
        : "=r"(last)
        : "r"(at)
        : "memory");
    return last;
}

__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, int bytes) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

// Whether the phase of this parity is complete.
__device__ __forceinline__ bool barrier_passed(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(at), "r"(parity)
        : "memory");
    return passed;
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    do {  // a loop in C++: ptxas needs far more registers around one in PTX
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!passed);
}

__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, Barrier* barrier) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(global), "r"(bytes), "r"(at)
                 : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
