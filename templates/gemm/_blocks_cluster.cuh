#pragma once
#include "_ptx_cluster.cuh"
#include "_ptx_multicast.cuh"

// Blocks of a cluster whose tiles have an operand in common, of which each loads its part for all. Needs _operands_sm90.cuh.

__device__ __forceinline__ void sync_blocks() { cluster_sync(); }
// No block arrives at the barriers of one that has ended.
__device__ __forceinline__ void end_blocks() { cluster_sync(); }

template <bool TRANSPOSED, int ROWS, int BLOCKS>
__device__ __forceinline__ void load_common_operand(unsigned char* to, const TensorMap* map, Barrier* full, int rank, int row, int k,
                                                    int product) {
    constexpr int OWN = ROWS / BLOCKS, ALL = (1 << BLOCKS) - 1;
    const int part = rank * OWN;
    unsigned char* const part_to = to + part * OPERAND_ROW_BYTES;
    if constexpr (TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < OWN; i += 64) tma_load_multicast(part_to + i * OPERAND_ROW_BYTES, map, full, ALL, row + part + i, k, product);
    } else {
        tma_load_multicast(part_to, map, full, ALL, k, row + part, product);
    }
}

// Each block fills a part of all.
template <int BLOCKS, int STAGES>
__device__ __forceinline__ void release_stage(PipelineTma<STAGES>& pipeline, int stage, int lane) {
    if (lane < BLOCKS) barrier_arrive_cluster(pipeline.empty + stage, lane);
}
