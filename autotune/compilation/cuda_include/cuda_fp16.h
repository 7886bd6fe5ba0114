// What kernels use of CUDA's cuda_fp16.h, whose 5,000 lines take longer to read than most kernels take to compile. As in
// prelude.h a name means what it means there, instruction by instruction, or is not here: a text that needs more, such
// as arithmetic by operators, does not compile, and is compiled with CUDA's own.
#pragma once

#if __CUDA_ARCH__ < 800
#error "before sm_80 two floats are rounded to halves by other instructions"
#endif

#define DEFINED static __inline__ __device__

struct __half {
    __half() = default;
    explicit __half(const void*) = delete;  // so that {1} is no 1 in its last place
    unsigned short bits;
};

struct __align__(4) __half2 {
    __half2() = default;
    explicit __half2(const void*) = delete;
    unsigned bits;
};

DEFINED __half __float2half_rn(float value) {
    __half rounded;
    asm("{  cvt.rn.f16.f32 %0, %1;}\n" : "=h"(rounded.bits) : "f"(value));
    return rounded;
}
DEFINED float __half2float(__half value) {
    float exact;
    asm("{  cvt.f32.f16 %0, %1;}\n" : "=f"(exact) : "h"(value.bits));
    return exact;
}
DEFINED __half2 __halves2half2(__half low, __half high) {
    __half2 both;
    asm("{  mov.b32 %0, {%1,%2};}\n" : "=r"(both.bits) : "h"(low.bits), "h"(high.bits));
    return both;
}
DEFINED __half2 __half2half2(__half value) {
    __half2 both;
    asm("{  mov.b32 %0, {%1,%1};}\n" : "=r"(both.bits) : "h"(value.bits));
    return both;
}
DEFINED __half2 __floats2half2_rn(float low, float high) {
    __half2 both;
    asm("{ cvt.rn.f16x2.f32 %0, %2, %1; }\n" : "=r"(both.bits) : "f"(low), "f"(high));
    return both;
}
DEFINED __half2 __float2half2_rn(float value) {
    __half2 both;
    asm("{.reg .f16 low;\n  cvt.rn.f16.f32 low, %1;\n  mov.b32 %0, {low,low};}\n" : "=r"(both.bits) : "f"(value));
    return both;
}
DEFINED float __low2float(__half2 value) {
    float exact;
    asm("{.reg .f16 low,high;\n  mov.b32 {low,high},%1;\n  cvt.f32.f16 %0, low;}\n" : "=f"(exact) : "r"(value.bits));
    return exact;
}
DEFINED float __high2float(__half2 value) {
    float exact;
    asm("{.reg .f16 low,high;\n  mov.b32 {low,high},%1;\n  cvt.f32.f16 %0, high;}\n" : "=f"(exact) : "r"(value.bits));
    return exact;
}
DEFINED __half __hfma(__half a, __half b, __half c) {
    __half sum;
    asm("{fma.rn.f16 %0,%1,%2,%3;\n}" : "=h"(sum.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
    return sum;
}
DEFINED __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    __half2 sum;
    asm("{fma.rn.f16x2 %0,%1,%2,%3;\n}" : "=r"(sum.bits) : "r"(a.bits), "r"(b.bits), "r"(c.bits));
    return sum;
}
#undef DEFINED
