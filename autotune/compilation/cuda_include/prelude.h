// What a kernel's text sees of CUDA, in place of cuda_runtime.h: nvcc includes that before every text, and its megabyte
// takes longer to read than most kernels take to compile. A name is here with all its overloads, declared and defined as
// CUDA's headers do, the rare ones deleted, or not at all: a text never means another function than it does with those
// headers. One that needs more, such as cuda_bf16.h before sm_90, does not compile, and is compiled with them.

#define __CUDA_RUNTIME_API_H__  // the guard of a header that others include and no kernel needs
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <crt/host_defines.h>
#include <device_launch_parameters.h>
#include <vector_types.h>

using size_t = decltype(sizeof(0));

#define BUILTIN extern "C" __device__ __device_builtin__
BUILTIN void __syncthreads();
BUILTIN void __nvvm_bar_warp_sync(unsigned mask);
BUILTIN unsigned __nvvm_shfl_idx_sync(unsigned mask, unsigned a, unsigned b, unsigned c);
BUILTIN unsigned __float_as_uint(float x);
BUILTIN float __uint_as_float(unsigned x);
BUILTIN unsigned __byte_perm(unsigned x, unsigned y, unsigned s);
BUILTIN int __float2int_rz(float x);
BUILTIN unsigned __float2uint_rz(float x);
BUILTIN float __fsub_rn(float x, float y);
BUILTIN float __fmaf_rn(float x, float y, float z);
BUILTIN float __fmaf_ieee_rn(float x, float y, float z);
BUILTIN float fmaf(float x, float y, float z);
BUILTIN float sqrtf(float x);
BUILTIN float logf(float x);
BUILTIN float sinf(float x);
BUILTIN float cosf(float x);
BUILTIN float tanhf(float x);
BUILTIN float fabsf(float x);
BUILTIN float fminf(float x, float y);
BUILTIN float fmaxf(float x, float y);
BUILTIN float __saturatef(float x);
BUILTIN double fabs(double x);
BUILTIN double fmax(double x, double y);
BUILTIN double exp(double x);
BUILTIN double erfc(double x);
BUILTIN double tanh(double x);
BUILTIN unsigned umin(unsigned a, unsigned b);
BUILTIN unsigned umax(unsigned a, unsigned b);
BUILTIN long long llmin(long long a, long long b);
BUILTIN long long llmax(long long a, long long b);
BUILTIN unsigned long long ullmin(unsigned long long a, unsigned long long b);
BUILTIN unsigned long long ullmax(unsigned long long a, unsigned long long b);
BUILTIN int min(int a, int b);
BUILTIN int max(int a, int b);
BUILTIN int __iAtomicAdd(int* address, int value);
BUILTIN unsigned __uAtomicAdd(unsigned* address, unsigned value);
BUILTIN unsigned long long __ullAtomicAdd(unsigned long long* address, unsigned long long value);
BUILTIN unsigned long long __ullAtomicMin(unsigned long long* address, unsigned long long value);
BUILTIN unsigned long long __ullAtomicMax(unsigned long long* address, unsigned long long value);
BUILTIN float __fAtomicAdd(float* address, float value);
BUILTIN double __dAtomicAdd(double* address, double value);
extern "C" __device__ __cudart_builtin__ void* memcpy(void* to, const void* from, size_t count);
#undef BUILTIN
__device__ size_t __nv_cvta_generic_to_shared_impl(const void*);

#define DEFINED static __inline__ __device__
DEFINED size_t __cvta_generic_to_shared(const void* pointer) { return __nv_cvta_generic_to_shared_impl(pointer); }
DEFINED void __syncwarp(unsigned mask = 0xffffffff) { return __nvvm_bar_warp_sync(mask); }
DEFINED int __shfl_sync(unsigned mask, int value, int lane, int width = warpSize) {
    const int c = ((warpSize - width) << 8) | 0x1f;
    return __nvvm_shfl_idx_sync(mask, value, lane, c);
}
#define EXTREME(name)                                                                                              \
    DEFINED unsigned name(unsigned a, unsigned b) { return u##name(a, b); }                                        \
    DEFINED unsigned name(int a, unsigned b) { return u##name(a, b); }                                             \
    DEFINED unsigned name(unsigned a, int b) { return u##name(a, b); }                                             \
    DEFINED long name(long a, long b) { return ll##name(a, b); }                                                   \
    DEFINED unsigned long name(unsigned long a, unsigned long b) { return ull##name(a, b); }                       \
    DEFINED unsigned long name(long a, unsigned long b) { return ull##name(a, b); }                                \
    DEFINED unsigned long name(unsigned long a, long b) { return ull##name(a, b); }                                \
    DEFINED long long name(long long a, long long b) { return ll##name(a, b); }                                    \
    DEFINED unsigned long long name(unsigned long long a, unsigned long long b) { return ull##name(a, b); }        \
    DEFINED unsigned long long name(long long a, unsigned long long b) { return ull##name(a, b); }                 \
    DEFINED unsigned long long name(unsigned long long a, long long b) { return ull##name(a, b); }                 \
    DEFINED float name(float a, float b) { return f##name##f(a, b); }                                              \
    double name(double a, double b) = delete;                                                                      \
    double name(float a, double b) = delete;                                                                       \
    double name(double a, float b) = delete;
EXTREME(min)
EXTREME(max)
#undef EXTREME
DEFINED int atomicAdd(int* address, int value) { return __iAtomicAdd(address, value); }
DEFINED unsigned atomicAdd(unsigned* address, unsigned value) { return __uAtomicAdd(address, value); }
DEFINED unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return __ullAtomicAdd(address, value);
}
DEFINED float atomicAdd(float* address, float value) { return __fAtomicAdd(address, value); }
DEFINED double atomicAdd(double* address, double value) { return __dAtomicAdd(address, value); }
DEFINED unsigned long long atomicMin(unsigned long long* address, unsigned long long value) {
    return __ullAtomicMin(address, value);
}
DEFINED unsigned long long atomicMax(unsigned long long* address, unsigned long long value) {
    return __ullAtomicMax(address, value);
}
#undef DEFINED

unsigned __shfl_sync(unsigned mask, unsigned value, int lane, int width = warpSize) = delete;
long __shfl_sync(unsigned mask, long value, int lane, int width = warpSize) = delete;
unsigned long __shfl_sync(unsigned mask, unsigned long value, int lane, int width = warpSize) = delete;
long long __shfl_sync(unsigned mask, long long value, int lane, int width = warpSize) = delete;
unsigned long long __shfl_sync(unsigned mask, unsigned long long value, int lane, int width = warpSize) = delete;
float __shfl_sync(unsigned mask, float value, int lane, int width = warpSize) = delete;
double __shfl_sync(unsigned mask, double value, int lane, int width = warpSize) = delete;
float fabs(float x) = delete;
float fmax(float x, float y) = delete;
float exp(float x) = delete;
float erfc(float x) = delete;
float tanh(float x) = delete;
