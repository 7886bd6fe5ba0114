#pragma once
#include <cuda_fp16.h>

#include "_element.cuh"

__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
    return __float2half_rn(value);
}
