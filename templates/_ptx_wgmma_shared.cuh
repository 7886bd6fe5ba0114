#pragma once

// Operands of a warpgroup's matrix products that lie in shared memory (sm_90a). Needs _ptx_wgmma.cuh.
//
// wgmma_descriptor: of an operand whose rows are ROW_BYTES (128 or 64) of neighbours in depth, row after row, swizzled as TMA does
// with as many bytes. Its first row lies on a multiple of 8 * ROW_BYTES, or on one of ROW_BYTES inside of what TMA wrote, as the swizzle is
// one of addresses. `eight_rows`: bytes from eight rows to the next eight, a multiple of ROW_BYTES.
// Operands that are not swizzled: wgmma_operand.
// store_operand: what a thread writes into an operand. Products see it after fence_bulk in that thread, and a barrier.

#ifdef __CUDACC__
template <typename V>
__device__ __forceinline__ void store_operand(void* to, const V& value) {
    *static_cast<V*>(to) = value;
}
#else
#include <autotune_host_wgmma.h>
#endif

[[maybe_unused]] constexpr int OPERAND_ROW_BYTES = 128;  // of neighbours in depth: what a swizzle of 128 bytes permutes
[[maybe_unused]] constexpr int MMA_DEPTH_BYTES = 32;     // of an operand's row that one MMA multiplies
[[maybe_unused]] constexpr int MMA_ROWS = 64;            // of operand a, and of the accumulators
// Steps of a descriptor: to the next MMA in depth, to the next row, to the next MMA's rows.
[[maybe_unused]] constexpr int DEPTH_STEP = MMA_DEPTH_BYTES / DESCRIPTOR_UNIT;
[[maybe_unused]] constexpr int ROW_STEP = OPERAND_ROW_BYTES / DESCRIPTOR_UNIT;
[[maybe_unused]] constexpr int MMA_ROWS_STEP = MMA_ROWS * OPERAND_ROW_BYTES / DESCRIPTOR_UNIT;

template <int ROW_BYTES = OPERAND_ROW_BYTES>
__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* pointer, int eight_rows = 8 * ROW_BYTES) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "a swizzle is of 128 or 64 bytes");
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
    constexpr unsigned long long SWIZZLE = 128 / ROW_BYTES;  // 1 is of 128 bytes, 2 of 64
    return at / DESCRIPTOR_UNIT | static_cast<unsigned long long>(eight_rows / DESCRIPTOR_UNIT) << 32 | SWIZZLE << 62;
}
