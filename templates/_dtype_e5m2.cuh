#pragma once
#include <cuda_fp8.h>

#include "_element.cuh"

using T = __nv_fp8_e5m2;  // elements in memory

__device__ __forceinline__ float to_float(T value) { return static_cast<float>(value); }

template <>
__device__ __forceinline__ T from_float<T>(float value) {
    return T(value);
}
