#pragma once
#include "_ptx_cluster.cuh"
#include "_ptx_multicast.cuh"

// SHARED_K neighbours in a cluster have tiles with the same columns, and load a part of these each, for all of them. Needs _mainloop_sm90.cuh and
// the family's constants.

// The first of them in the cluster.
__device__ __forceinline__ int first_sharing() { return static_cast<int>(blockIdx.x) % CLUSTER_BLOCKS / SHARED_K * SHARED_K; }

struct Mma : StagedMma<STAGE_BYTES, DEPTH / 16, true, true> {
    // Each of them fills a part of all.
    __device__ __forceinline__ static void release(PipelineTma<STAGES>& pipeline, int index, int lane) {
        if (lane < SHARED_K) barrier_arrive_cluster(pipeline.empty + index, first_sharing() + lane);
    }
};

template <class Tile>
__device__ __forceinline__ void load_columns(unsigned char* to, const TensorMap& x_map, Barrier* full, const Tile& tile, int pixel) {
    constexpr int OWN = TILE_COLUMNS / SHARED_K, ALL = (1 << SHARED_K) - 1;
    const int part = static_cast<int>(blockIdx.x) % SHARED_K * OWN;
#pragma unroll
    for (int i = 0; i < OWN; i += 64)
        tma_load_multicast(to + (part + i) * OPERAND_ROW_BYTES, &x_map, full, ALL << first_sharing(), tile.first_column + part + i, pixel, 0);
}
