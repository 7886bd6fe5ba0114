#pragma once

// Fragments of a warp out of shared memory, as an instruction on the GPU and as plain C++ on the CPU.
//
// load_matrices_trans: what store_matrices_trans stored: four (or two) matrices of 8 x 8 16-bit elements. Lane 8 i + j gives the
// address, a multiple of 16, of the 16 bytes of column j of matrix i; lane 4 g + t gets elements (g, 2 t) and (g, 2 t + 1) of it as
// d[i]. Of two matrices lanes 0 to 15 give addresses; the others' are ignored.

#ifdef __CUDACC__
__device__ __forceinline__ void load_matrices_trans(unsigned (&d)[4], const void* column) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_trans(unsigned (&d)[2], const void* column) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(from) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
