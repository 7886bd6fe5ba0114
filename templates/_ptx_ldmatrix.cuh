#pragma once

// Operands of a warp's matrix products out of shared memory, as an instruction on the GPU and as plain C++ on the CPU.
//
// load_matrices: four matrices of 8 rows of 16 bytes (eight 16-bit elements), each row wherever it lies on a multiple of 16
// bytes. Lane 8 i + j gives the address of row j of matrix i; lane 4 g + t gets of each matrix i elements 2 t and 2 t + 1 of
// row g as d[i]: with the matrices at (0, 0), (8, 0), (0, 8) and (8, 8) operand a of a 16-bit MMA, 16 deep.

#ifdef __CUDACC__
__device__ __forceinline__ void load_matrices(unsigned (&d)[4], const void* row) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(from));
}
#else
#include <autotune_host_ptx.h>
#endif
