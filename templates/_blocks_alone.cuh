#pragma once

// What _blocks_cluster.cuh does for the blocks of a cluster, for blocks without one. Needs _sm90.cuh.

__device__ __forceinline__ void sync_blocks() { __syncthreads(); }
__device__ __forceinline__ void end_blocks() {}

template <int THREADS>
__device__ __forceinline__ void sync_producer(int id) {
    arrive_threads<THREADS>(id);  // and the first loads are under way before the others come
}
template <int THREADS>
__device__ __forceinline__ void sync_consumers(int id) {
    sync_threads<THREADS>(id);
}

template <int BLOCKS>
__device__ __forceinline__ void load_common(unsigned char* to, const TensorMap* map, Barrier* full, int c0, int c1, int c2) {
    tma_load(to, map, full, c0, c1, c2);
}

template <int BLOCKS, int STAGES>
__device__ __forceinline__ void release_stage(PipelineTma<STAGES>& pipeline, int stage, int lane) {
    if (lane == 0) pipeline.consumer_release(stage);
}
