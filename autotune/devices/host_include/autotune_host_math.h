// CUDA's device math: the C functions by built-ins, their C++ overloads, and the integer and rounding intrinsics.
#pragma once

// The constants of <math.h>.
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VAL __builtin_huge_val()
#define HUGE_VALF __builtin_huge_valf()
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

#define AUTOTUNE_MATH1(name)                                                                 \
    inline float name##f(float a) { return __builtin_##name##f(a); }                         \
    inline double name(double a) { return __builtin_##name(a); }                             \
    inline float name(float a) { return __builtin_##name##f(a); }
#define AUTOTUNE_MATH2(name)                                                                 \
    inline float name##f(float a, float b) { return __builtin_##name##f(a, b); }             \
    inline double name(double a, double b) { return __builtin_##name(a, b); }                \
    inline float name(float a, float b) { return __builtin_##name##f(a, b); }
AUTOTUNE_MATH1(sqrt)
AUTOTUNE_MATH1(cbrt)
AUTOTUNE_MATH1(exp)
AUTOTUNE_MATH1(exp2)
AUTOTUNE_MATH1(exp10)
AUTOTUNE_MATH1(expm1)
AUTOTUNE_MATH1(log)
AUTOTUNE_MATH1(log2)
AUTOTUNE_MATH1(log10)
AUTOTUNE_MATH1(log1p)
AUTOTUNE_MATH1(sin)
AUTOTUNE_MATH1(cos)
AUTOTUNE_MATH1(tan)
AUTOTUNE_MATH1(asin)
AUTOTUNE_MATH1(acos)
AUTOTUNE_MATH1(atan)
AUTOTUNE_MATH1(sinh)
AUTOTUNE_MATH1(cosh)
AUTOTUNE_MATH1(tanh)
AUTOTUNE_MATH1(asinh)
AUTOTUNE_MATH1(acosh)
AUTOTUNE_MATH1(atanh)
AUTOTUNE_MATH1(erf)
AUTOTUNE_MATH1(erfc)
AUTOTUNE_MATH1(lgamma)
AUTOTUNE_MATH1(tgamma)
AUTOTUNE_MATH1(ceil)
AUTOTUNE_MATH1(floor)
AUTOTUNE_MATH1(trunc)
AUTOTUNE_MATH1(round)
AUTOTUNE_MATH1(rint)
AUTOTUNE_MATH1(nearbyint)
AUTOTUNE_MATH1(fabs)
AUTOTUNE_MATH2(fmin)
AUTOTUNE_MATH2(fmax)
AUTOTUNE_MATH2(fmod)
AUTOTUNE_MATH2(remainder)
AUTOTUNE_MATH2(nextafter)
AUTOTUNE_MATH2(fdim)
AUTOTUNE_MATH2(pow)
AUTOTUNE_MATH2(atan2)
AUTOTUNE_MATH2(hypot)
AUTOTUNE_MATH2(copysign)
#undef AUTOTUNE_MATH1
#undef AUTOTUNE_MATH2

inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float ldexpf(float a, int exponent) { return __builtin_ldexpf(a, exponent); }
inline float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
inline double rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }
inline void sincosf(float a, float* sine, float* cosine) { *sine = __builtin_sinf(a), *cosine = __builtin_cosf(a); }
inline void sincos(double a, double* sine, double* cosine) { *sine = __builtin_sin(a), *cosine = __builtin_cos(a); }
inline double sinpi(double a) { return __builtin_sin(M_PI * __builtin_fmod(a, 2.0)); }
inline double cospi(double a) { return __builtin_cos(M_PI * __builtin_fmod(a, 2.0)); }
inline float sinpif(float a) { return static_cast<float>(sinpi(a)); }
inline float cospif(float a) { return static_cast<float>(cospi(a)); }
inline void sincospif(float a, float* sine, float* cosine) { *sine = sinpif(a), *cosine = cospif(a); }
inline void sincospi(double a, double* sine, double* cosine) { *sine = sinpi(a), *cosine = cospi(a); }
inline float modff(float a, float* whole) { return __builtin_modff(a, whole); }
inline double modf(double a, double* whole) { return __builtin_modf(a, whole); }
inline float frexpf(float a, int* exponent) { return __builtin_frexpf(a, exponent); }
inline double frexp(double a, int* exponent) { return __builtin_frexp(a, exponent); }
inline double ldexp(double a, int exponent) { return __builtin_ldexp(a, exponent); }
inline long lroundf(float a) { return __builtin_lroundf(a); }
inline long lround(double a) { return __builtin_lround(a); }
inline long lrintf(float a) { return __builtin_lrintf(a); }
inline long lrint(double a) { return __builtin_lrint(a); }
inline bool isnan(float a) { return __builtin_isnan(a); }
inline bool isnan(double a) { return __builtin_isnan(a); }
inline bool isinf(float a) { return __builtin_isinf(a); }
inline bool isinf(double a) { return __builtin_isinf(a); }
inline bool isfinite(float a) { return __builtin_isfinite(a); }
inline bool isfinite(double a) { return __builtin_isfinite(a); }
inline bool signbit(float a) { return __builtin_signbit(a); }
inline bool signbit(double a) { return __builtin_signbit(a); }
inline float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1 : 0; }
inline float __expf(float a) { return __builtin_expf(a); }
inline float __logf(float a) { return __builtin_logf(a); }
inline float __log2f(float a) { return __builtin_log2f(a); }
inline float __log10f(float a) { return __builtin_log10f(a); }
inline float __exp10f(float a) { return __builtin_exp10f(a); }
inline float __sinf(float a) { return __builtin_sinf(a); }
inline float __cosf(float a) { return __builtin_cosf(a); }
inline float __tanf(float a) { return __builtin_tanf(a); }
inline void __sincosf(float a, float* sine, float* cosine) { sincosf(a, sine, cosine); }
inline float __powf(float a, float b) { return __builtin_powf(a, b); }
inline float __fdividef(float a, float b) { return a / b; }

extern "C" inline int abs(int a) noexcept { return __builtin_abs(a); }  // as <stdlib.h> declares it
inline long abs(long a) { return __builtin_labs(a); }
inline long long abs(long long a) { return __builtin_llabs(a); }
inline float abs(float a) { return __builtin_fabsf(a); }
inline double abs(double a) { return __builtin_fabs(a); }

#define AUTOTUNE_MIN_MAX(T, A, B)                                                            \
    inline T min(A a, B b) { return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b); } \
    inline T max(A a, B b) { return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b); }
AUTOTUNE_MIN_MAX(int, int, int)
AUTOTUNE_MIN_MAX(unsigned, unsigned, unsigned)
AUTOTUNE_MIN_MAX(unsigned, int, unsigned)
AUTOTUNE_MIN_MAX(unsigned, unsigned, int)
AUTOTUNE_MIN_MAX(long, long, long)
AUTOTUNE_MIN_MAX(unsigned long, unsigned long, unsigned long)
AUTOTUNE_MIN_MAX(long long, long long, long long)
AUTOTUNE_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef AUTOTUNE_MIN_MAX
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline double min(float a, double b) { return __builtin_fmin(a, b); }
inline double max(float a, double b) { return __builtin_fmax(a, b); }
inline double min(double a, float b) { return __builtin_fmin(a, b); }
inline double max(double a, float b) { return __builtin_fmax(a, b); }

// The _rn forms are never fused with a neighbour; the compiler may fuse plain operators, as nvcc does.
#if defined(__x86_64__)
#define AUTOTUNE_KEEP(value) asm("" : "+x"(value))
#elif defined(__aarch64__)
#define AUTOTUNE_KEEP(value) asm("" : "+w"(value))
#else
#define AUTOTUNE_KEEP(value) asm("" : "+m"(value))
#endif
#define AUTOTUNE_ROUNDED(name, T, expression)                                                \
    inline T name(T a, T b) {                                                                \
        T result = expression;                                                               \
        AUTOTUNE_KEEP(result);                                                               \
        return result;                                                                       \
    }
AUTOTUNE_ROUNDED(__fadd_rn, float, a + b)
AUTOTUNE_ROUNDED(__fsub_rn, float, a - b)
AUTOTUNE_ROUNDED(__fmul_rn, float, a* b)
AUTOTUNE_ROUNDED(__fdiv_rn, float, a / b)
AUTOTUNE_ROUNDED(__dadd_rn, double, a + b)
AUTOTUNE_ROUNDED(__dsub_rn, double, a - b)
AUTOTUNE_ROUNDED(__dmul_rn, double, a* b)
AUTOTUNE_ROUNDED(__ddiv_rn, double, a / b)
#undef AUTOTUNE_ROUNDED
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a))); }

namespace autotune_host {
template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as changes the type, not the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
}  // namespace autotune_host
inline float __int_as_float(int a) { return autotune_host::bits_as<float>(a); }
inline float __uint_as_float(unsigned a) { return autotune_host::bits_as<float>(a); }
inline int __float_as_int(float a) { return autotune_host::bits_as<int>(a); }
inline unsigned __float_as_uint(float a) { return autotune_host::bits_as<unsigned>(a); }
inline double __longlong_as_double(long long a) { return autotune_host::bits_as<double>(a); }
inline long long __double_as_longlong(double a) { return autotune_host::bits_as<long long>(a); }

namespace autotune_host {
// A conversion of CUDA saturates and turns NaN into 0; the same in C++ is undefined.
template <class T>
inline T to_integer(double rounded, double least, double most) {
    return __builtin_isnan(rounded) ? T(0)
           : rounded <= least       ? static_cast<T>(least)
           : rounded >= most        ? static_cast<T>(-1) < 0 ? static_cast<T>(2147483647) : static_cast<T>(-1)
                                    : static_cast<T>(rounded);
}
}  // namespace autotune_host
inline int __float2int_rn(float a) { return autotune_host::to_integer<int>(__builtin_rint(a), -2147483648.0, 2147483647.0); }
inline int __float2int_rz(float a) { return autotune_host::to_integer<int>(__builtin_trunc(a), -2147483648.0, 2147483647.0); }
inline int __float2int_rd(float a) { return autotune_host::to_integer<int>(__builtin_floor(a), -2147483648.0, 2147483647.0); }
inline int __float2int_ru(float a) { return autotune_host::to_integer<int>(__builtin_ceil(a), -2147483648.0, 2147483647.0); }
inline unsigned __float2uint_rn(float a) { return autotune_host::to_integer<unsigned>(__builtin_rint(a), 0.0, 4294967295.0); }
inline unsigned __float2uint_rz(float a) { return autotune_host::to_integer<unsigned>(__builtin_trunc(a), 0.0, 4294967295.0); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }

inline unsigned __brev(unsigned a) {
    a = (a >> 1 & 0x55555555u) | (a & 0x55555555u) << 1;
    a = (a >> 2 & 0x33333333u) | (a & 0x33333333u) << 2;
    a = (a >> 4 & 0x0f0f0f0fu) | (a & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(a);
}
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(static_cast<unsigned>(a)) : 32; }
inline int __clzll(long long a) { return a ? __builtin_clzll(static_cast<unsigned long long>(a)) : 64; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __mul24(int a, int b) { return static_cast<int>(static_cast<unsigned>(a << 8 >> 8) * static_cast<unsigned>(b << 8 >> 8)); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
// c and the four products of the bytes of two words.
#define AUTOTUNE_DP4A(T, Byte)                                                                                      \
    inline T __dp4a(T a, T b, T c) {                                                                               \
        unsigned sum = static_cast<unsigned>(c);                                                                   \
        for (int shift = 0; shift < 32; shift += 8)                                                                \
            sum += static_cast<unsigned>(static_cast<Byte>(a >> shift) * static_cast<Byte>(b >> shift));           \
        return static_cast<T>(sum);                                                                                \
    }
AUTOTUNE_DP4A(int, signed char)
AUTOTUNE_DP4A(unsigned, unsigned char)
#undef AUTOTUNE_DP4A
inline int __dp4a(char4 a, char4 b, int c) { return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return c + static_cast<unsigned>(a.x * b.x) + static_cast<unsigned>(a.y * b.y) + static_cast<unsigned>(a.z * b.z) +
           static_cast<unsigned>(a.w * b.w);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned choice = selector >> 4 * i & 15;
        unsigned byte = static_cast<unsigned>(bytes >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

template <class T>
inline T __ldg(const T* address) {
#ifdef AUTOTUNE_CHECKED
    autotune_read_only(address, sizeof(T));
#endif
    return *address;
}
template <class T>
inline T __ldcg(const T* address) {
    return *address;
}
template <class T>
inline T __ldcs(const T* address) {
    return *address;
}
template <class T>
inline void __stcg(T* address, T value) {
    *address = value;
}
template <class T>
inline void __stcs(T* address, T value) {
    *address = value;
}
template <class T>
inline void __stwt(T* address, T value) {
    *address = value;
}

#if defined(__x86_64__)
inline long long clock64() { return static_cast<long long>(__builtin_ia32_rdtsc()); }
#else
extern "C" long autotune_clock();
inline long long clock64() { return autotune_clock(); }
#endif
extern "C" inline long clock() noexcept { return static_cast<long>(clock64()); }  // as <time.h> declares it
inline void __nanosleep(unsigned) {}
// Counted from the dynamic shared memory, where there is some. In a cluster the bits above say which block's it is, as on the GPU.
inline size_t __cvta_generic_to_shared(const void* address) {
    const size_t rank = autotune_cluster_rank ? autotune_cluster_rank() : 0;
    return reinterpret_cast<size_t>(address) - reinterpret_cast<size_t>(autotune_smem_address ? autotune_smem_address() : nullptr) + (rank << 24);
}
