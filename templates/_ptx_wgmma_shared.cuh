#pragma once

// Operands of a warpgroup's matrix products that lie in shared memory (sm_90a). Needs _ptx_wgmma.cuh.
//
// wgmma_descriptor: of an operand whose rows are 128 bytes of neighbours in depth, row after row, swizzled as TMA does with 128
// bytes. Its first row lies on a multiple of 1024 bytes, or on one of 128 bytes inside of what TMA wrote, as the swizzle is one of
// addresses. `eight_rows`: bytes from eight rows to the next eight, a multiple of 128; 1024 where all rows follow each other.
// Descriptors count 16 bytes: add 2 for the next 16 elements in depth, 8 for the next row. Operands that are not swizzled: wgmma_operand.
// store_operand: what a thread writes into an operand. Products see it after fence_bulk in that thread, and a barrier.

#ifdef __CUDACC__
template <typename V>
__device__ __forceinline__ void store_operand(void* to, const V& value) {
    *static_cast<V*>(to) = value;
}
#else
#include <autotune_host_wgmma.h>
#endif

__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* pointer, int eight_rows = 1024) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
    constexpr unsigned long long SWIZZLE_128B = 1ull << 62;
    return (at >> 4) | static_cast<unsigned long long>(eight_rows / 16) << 32 | SWIZZLE_128B;
}
