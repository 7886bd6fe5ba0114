#pragma once

// load_operand of _mainloop_sm90.cuh for several blocks of a cluster at once. Needs _ptx_multicast.cuh.
template <bool TRANSPOSED, int ROWS>
__device__ __forceinline__ void load_operand_multicast(unsigned char* to, const TensorMap* map, Barrier* full, int blocks, int row, int k,
                                                       int product) {
    if constexpr (TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 64) tma_load_multicast(to + i * 128, map, full, blocks, row + i, k, product);
    } else {
        tma_load_multicast(to, map, full, blocks, k, row, product);
    }
}
