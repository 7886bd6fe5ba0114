#pragma once

// Matrix products of a warpgroup, four warps in a row, as instructions on the GPU (sm_90a) and as plain C++ on the CPU.
//
// MMAs whose operands are not those of _ptx_wgmma_rs.cuh are written where they are used, with wgmma_operand. On the CPU wgmma_TYPE_wide computes them: eight columns of
// b are 128 bytes behind the eight before, the second four words `deeper` bytes behind the first; a is a lane's part, or lies in
// shared memory in the same way.
// MMAs are asynchronous: neither d nor a may be touched between wgmma_begin and wgmma_wait, which waits for what was started
// before wgmma_commit; what threads wrote to b must be made visible before: fence_bulk in each of them and a barrier.
// MMAs since the last commit are a group. wgmma_wait_group<N> waits for all groups but the last N: a of the others may then be
// touched, their accumulators only where no MMAs under way add to them. What is put in a is seen after another wgmma_fence.
// warpgroup_reg_dealloc, warpgroup_reg_alloc: registers a thread has from here on, by all warps of a warpgroup, a multiple of 8.

#ifdef __CUDACC__
template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_keep(float (&d)[COLUMNS][TILES][4]) {
#pragma unroll
    for (int i = 0; i < COLUMNS * TILES * 4; ++i) asm volatile("" : "+f"(d[i / (TILES * 4)][i / 4 % TILES][i % 4])::"memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_begin(float (&d)[COLUMNS][TILES][4]) {
    wgmma_keep(d);
    wgmma_fence();
}

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_wait(float (&d)[COLUMNS][TILES][4]) {
    wgmma_wait_group<0>();
    wgmma_keep(d);
}

__device__ __forceinline__ unsigned wgmma_word(float value) { return __float_as_uint(value); }
__device__ __forceinline__ unsigned wgmma_word(unsigned value) { return value; }

template <int REGISTERS>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
#else
#include <autotune_host_ptx.h>
#endif

// Bytes that an address or a distance counts in the descriptor of an operand in shared memory (PTX ISA, matrix descriptor).
[[maybe_unused]] constexpr int DESCRIPTOR_UNIT = 16;

// Where an operand lies, `offset` bytes behind a pointer: 8 rows of 16 bytes each are contiguous, `deeper` bytes on from four words to
// the next, `further` bytes from eight rows to the next.
__device__ __forceinline__ unsigned long long wgmma_operand(const void* pointer, int offset, int deeper, int further) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
    const unsigned begin = at / DESCRIPTOR_UNIT + (static_cast<unsigned>(offset) / DESCRIPTOR_UNIT + (static_cast<unsigned>(deeper) / DESCRIPTOR_UNIT << 16));
    return begin | static_cast<unsigned long long>(further / DESCRIPTOR_UNIT) << 32;
}
