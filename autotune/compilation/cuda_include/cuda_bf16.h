// What kernels use of CUDA's cuda_bf16.h; see cuda_fp16.h, which it brings along as CUDA's does.
#pragma once

#include "cuda_fp16.h"

#if __CUDA_ARCH__ < 900
#error "before sm_90 a bfloat16 becomes a float by another instruction"
#endif

#define DEFINED static __inline__ __device__

struct __nv_bfloat16 {
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(const void*) = delete;
    unsigned short bits;
};

DEFINED __nv_bfloat16 __float2bfloat16_rn(float value) {
    __nv_bfloat16 rounded;
    asm("{  cvt.rn.bf16.f32 %0, %1;}\n" : "=h"(rounded.bits) : "f"(value));
    return rounded;
}
DEFINED float __bfloat162float(__nv_bfloat16 value) {
    float exact;
    asm("{ cvt.f32.bf16 %0, %1;}\n" : "=f"(exact) : "h"(value.bits));
    return exact;
}
#undef DEFINED
