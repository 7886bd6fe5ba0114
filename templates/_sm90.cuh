#pragma once
#include "_ptx.cuh"
#include "_ptx_barrier.cuh"
#include "_ptx_tma.cuh"
#include "_ptx_wgmma.cuh"
#include "_ptx_wgmma_shared.cuh"
#include "_pipeline.cuh"

// What the families of Hopper's producers and consumer warpgroups begin with. Names are CUTLASS's.

// The warp's number in its block: the same for its lanes, and seen to be, so that the operands of wgmma need uniform registers only.
__device__ __forceinline__ int canonical_warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

// Tiles of a block that stays, or of a cluster of BLOCKS: `step` apart.
template <int BLOCKS = 1>
struct PersistentTileScheduler {
    __device__ __forceinline__ static int first() { return static_cast<int>(blockIdx.x) / BLOCKS; }
    __device__ __forceinline__ static int step() { return static_cast<int>(gridDim.x) / BLOCKS; }
};
