#pragma once

// Results of a warp's matrix products into shared memory, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// store_matrices_trans: four (or two) matrices of 8 x 8 16-bit elements, stored transposed: lane 4 g + t holds elements (g, 2 t) and
// (g, 2 t + 1) of matrix i in d[i], and lane 8 i + j gives the address, a multiple of 16, at which column j of it is stored as 16
// bytes. Of two matrices lanes 0 to 15 give addresses; the others' are ignored.

#ifdef __CUDACC__
__device__ __forceinline__ void store_matrices_trans(void* column, const unsigned (&d)[4]) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(d[0]), "r"(d[1]), "r"(d[2]),
                 "r"(d[3])
                 : "memory");
}

__device__ __forceinline__ void store_matrices_trans(void* column, const unsigned (&d)[2]) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(d[0]), "r"(d[1]) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
