#pragma once
#include <cuda_bf16.h>

#include "_element.cuh"

__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}
