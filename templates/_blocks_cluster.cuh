#pragma once
#include "_ptx_cluster.cuh"
#include "_ptx_multicast.cuh"

// Blocks of a cluster whose tiles have an operand in common, of which each loads its part for all. Needs _sm90.cuh.

__device__ __forceinline__ void sync_blocks() { cluster_sync(); }
// No block arrives at the barriers of one that has ended.
__device__ __forceinline__ void end_blocks() { cluster_sync(); }

// sync_blocks by the producer's warpgroup, and by the others; no block loads before the other's barriers are there.
template <int THREADS>
__device__ __forceinline__ void sync_producer(int) {
    sync_blocks();
}
template <int THREADS>
__device__ __forceinline__ void sync_consumers(int) {
    sync_blocks();
}

// Loads the block's part of the operand, to the same place in all BLOCKS.
template <int BLOCKS>
__device__ __forceinline__ void load_common(unsigned char* to, const TensorMap* map, Barrier* full, int c0, int c1, int c2) {
    constexpr int ALL = (1 << BLOCKS) - 1;
    tma_load_multicast(to, map, full, ALL, c0, c1, c2);
}

// Each block fills a part of all.
template <int BLOCKS, int STAGES>
__device__ __forceinline__ void release_stage(PipelineTma<STAGES>& pipeline, int stage, int lane) {
    if (lane < BLOCKS) barrier_arrive_cluster(pipeline.empty + stage, lane);
}
