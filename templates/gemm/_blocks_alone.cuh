#pragma once

// What _blocks_cluster.cuh does for the blocks of a cluster, for blocks without one. Needs _operands_sm90.cuh.

__device__ __forceinline__ void sync_blocks() { __syncthreads(); }
__device__ __forceinline__ void end_blocks() {}

template <bool TRANSPOSED, int ROWS, int BLOCKS>
__device__ __forceinline__ void load_common_operand(unsigned char* to, const TensorMap* map, Barrier* full, int, int row, int k, int product) {
    load_operand<TRANSPOSED, ROWS>(to, map, full, row, k, product);
}

template <int BLOCKS, int STAGES>
__device__ __forceinline__ void release_stage(PipelineTma<STAGES>& pipeline, int stage, int lane) {
    if (lane == 0) pipeline.consumer_release(stage);
}
