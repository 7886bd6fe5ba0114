#pragma once

// The big part of a split float, the nearest TF32. Unlike to_tf32 it makes a number of a NaN: the small part, value - tf32_big(value), is what
// stays NaN.
__device__ __forceinline__ float tf32_big(float value) {
    return __uint_as_float((__float_as_uint(value) + 0x1000u) & 0xffffe000u);
}
