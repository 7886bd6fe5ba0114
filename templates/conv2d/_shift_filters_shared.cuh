#pragma once

// Filters of all steps in shared memory. Needs Step, _ptx_wgmma.cuh and the family's constants.

using Filters = const Chunk*;

__device__ __forceinline__ void load_filters(Filters& filters, const Chunk* shared, int, int) { filters = shared; }

#ifdef __CUDACC__
__device__ __forceinline__ unsigned long long operand_of(Filters filters, const Step& step, int) {
    return wgmma_operand(filters, step.filters * 16, step.filters_deeper * 16, STORED * 16);
}
#endif
