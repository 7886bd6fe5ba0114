// The host device's cuda_fp16.h.
#pragma once
#include "autotune_host.h"
#include "autotune_host_small_float.h"

AUTOTUNE_SMALL_FLOAT(__half, __half2, HalfFormat)
typedef __half half;
typedef __half2 half2;

inline __half __float2half(float a) { return __half(a); }
inline __half __float2half_rn(float a) { return __half(a); }
inline __half __double2half(double a) { return __half(a); }
inline __half __int2half_rn(int a) { return __half(a); }
inline __half __uint2half_rn(unsigned a) { return __half(a); }
inline float __half2float(__half a) { return static_cast<float>(a); }
inline int __half2int_rn(__half a) { return __float2int_rn(a); }
inline int __half2int_rz(__half a) { return __float2int_rz(a); }
inline __half __ushort_as_half(unsigned short a) { return __half::from_bits(a); }
inline __half __short_as_half(short a) { return __half::from_bits(static_cast<unsigned short>(a)); }
inline unsigned short __half_as_ushort(__half a) { return a.bits; }
inline short __half_as_short(__half a) { return static_cast<short>(a.bits); }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }
