// 16-bit floating point: what cuda_fp16.h and cuda_bf16.h have in common. Every operation rounds its result once, to
// nearest even, as the GPU does: it is computed in float, which is exact enough for + - * / and sqrt (24 >= 2 p + 2
// bits, Figueroa 1995), and corrected for the fused multiply-add where the float lies on a tie of the short format.
#pragma once

namespace autotune_host {

// The float `rounded` moved off a tie, towards the exact a * b + c that it was rounded from.
inline float off_tie(float rounded, double a, double b, double c) {
    const double product = a * b;  // exact
    const double sum = product + c;
    const double part = sum - product;
    const double rest = (product - (sum - part)) + (c - part);  // sum + rest is exact (Knuth's two-sum)
    const double away = sum != rounded ? sum - rounded : rest;
    if (away == 0) return rounded;
    const unsigned bits = bits_as<unsigned>(rounded);
    return bits_as<float>((away > 0) == (rounded > 0) ? bits + 1 : bits - 1);
}

struct HalfFormat {
    using Bits = unsigned short;
    static float widen(unsigned short bits) {
#ifdef __FLT16_MANT_DIG__
        return static_cast<float>(bits_as<_Float16>(bits));
#else
        const unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
        if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
        if (magnitude >= 0x400u) return bits_as<float>(sign | ((magnitude << 13) + 0x38000000u));
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -value : value;
#endif
    }
    static unsigned short narrow(float value) {
#ifdef __FLT16_MANT_DIG__
        return bits_as<unsigned short>(static_cast<_Float16>(value));
#else
        const unsigned bits = bits_as<unsigned>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return static_cast<unsigned short>(sign | 0x7e00u);
        if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
        if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the last bits
            const float shifted = bits_as<float>(magnitude) + 0.5f;
            return static_cast<unsigned short>(sign | (bits_as<unsigned>(shifted) - 0x3f000000u));
        }
        return static_cast<unsigned short>(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
#endif
    }
    static bool is_tie(float value) {
        const unsigned magnitude = bits_as<unsigned>(value) & 0x7fffffffu;
        if (magnitude >= 0x38800000u) return (magnitude & 0x1fffu) == 0x1000u;
        const float halves = bits_as<float>(magnitude) * 0x1p25f;  // a tie is an odd multiple of half the step 2^-24
        return halves == static_cast<float>(static_cast<int>(halves)) && (static_cast<int>(halves) & 1);
    }
};

struct Bfloat16Format {
    using Bits = unsigned short;
    static float widen(unsigned short bits) { return bits_as<float>(static_cast<unsigned>(bits) << 16); }
    static unsigned short narrow(float value) {
        const unsigned bits = bits_as<unsigned>(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    static bool is_tie(float value) { return (bits_as<unsigned>(value) & 0xffffu) == 0x8000u; }
};

template <class Format>
inline unsigned short narrow_double(double value) {
    float rounded = static_cast<float>(value);
    if (Format::is_tie(rounded)) rounded = off_tie(rounded, value, 1, 0);
    return Format::narrow(rounded);
}

template <class Format>
inline unsigned short fused_multiply_add(float a, float b, float c) {
    float rounded = __builtin_fmaf(a, b, c);
    if (__builtin_expect(Format::is_tie(rounded), 0)) rounded = off_tie(rounded, a, b, c);
    return Format::narrow(rounded);
}

}  // namespace autotune_host

// A type T of `Format`, its pair T2, and the functions and operators that both headers name alike.
#define AUTOTUNE_SMALL_FLOAT(T, T2, Format)                                                                         \
    struct __attribute__((aligned(2))) T {                                                                          \
        unsigned short bits;                                                                                        \
        T() = default;                                                                                              \
        T(float value) : bits(autotune_host::Format::narrow(value)) {}                                              \
        T(double value) : bits(autotune_host::narrow_double<autotune_host::Format>(value)) {}                       \
        T(int value) : T(static_cast<double>(value)) {}                                                             \
        T(unsigned value) : T(static_cast<double>(value)) {}                                                        \
        operator float() const { return autotune_host::Format::widen(bits); }                                       \
        static T from_bits(unsigned short bits) {                                                                   \
            T result;                                                                                               \
            result.bits = bits;                                                                                     \
            return result;                                                                                          \
        }                                                                                                           \
    };                                                                                                              \
    struct __attribute__((aligned(4))) T2 {                                                                         \
        T x, y;                                                                                                     \
        T2() = default;                                                                                             \
        T2(T x_, T y_) : x(x_), y(y_) {}                                                                            \
    };                                                                                                              \
    inline T __hadd(T a, T b) { return T(static_cast<float>(a) + static_cast<float>(b)); }                          \
    inline T __hsub(T a, T b) { return T(static_cast<float>(a) - static_cast<float>(b)); }                          \
    inline T __hmul(T a, T b) { return T(static_cast<float>(a) * static_cast<float>(b)); }                          \
    inline T __hdiv(T a, T b) { return T(static_cast<float>(a) / static_cast<float>(b)); }                          \
    inline T __hadd_rn(T a, T b) { return __hadd(a, b); }                                                           \
    inline T __hsub_rn(T a, T b) { return __hsub(a, b); }                                                           \
    inline T __hmul_rn(T a, T b) { return __hmul(a, b); }                                                           \
    inline T __hneg(T a) { return T::from_bits(a.bits ^ 0x8000u); }                                                 \
    inline T __habs(T a) { return T::from_bits(a.bits & 0x7fffu); }                                                 \
    inline T __hfma(T a, T b, T c) {                                                                                \
        return T::from_bits(autotune_host::fused_multiply_add<autotune_host::Format>(a, b, c));                     \
    }                                                                                                               \
    inline T __hmin(T a, T b) { return T(__builtin_fminf(a, b)); }                                                  \
    inline T __hmax(T a, T b) { return T(__builtin_fmaxf(a, b)); }                                                  \
    inline T __hfma_relu(T a, T b, T c) { return __hmax(__hfma(a, b, c), T(0.0f)); }                                \
    inline T hsqrt(T a) { return T(__builtin_sqrtf(a)); }                                                           \
    inline T hrcp(T a) { return T(1.0f / static_cast<float>(a)); }                                                  \
    inline T hexp(T a) { return T(__builtin_expf(a)); }                                                             \
    inline T hlog(T a) { return T(__builtin_logf(a)); }                                                             \
    inline bool __heq(T a, T b) { return static_cast<float>(a) == static_cast<float>(b); }                          \
    inline bool __hne(T a, T b) { return __builtin_islessgreater(static_cast<float>(a), static_cast<float>(b)); }   \
    inline bool __hlt(T a, T b) { return static_cast<float>(a) < static_cast<float>(b); }                           \
    inline bool __hle(T a, T b) { return static_cast<float>(a) <= static_cast<float>(b); }                          \
    inline bool __hgt(T a, T b) { return static_cast<float>(a) > static_cast<float>(b); }                           \
    inline bool __hge(T a, T b) { return static_cast<float>(a) >= static_cast<float>(b); }                          \
    inline bool __hisnan(T a) { return __builtin_isnan(static_cast<float>(a)); }                                    \
    inline T operator+(T a, T b) { return __hadd(a, b); }                                                           \
    inline T operator-(T a, T b) { return __hsub(a, b); }                                                           \
    inline T operator*(T a, T b) { return __hmul(a, b); }                                                           \
    inline T operator/(T a, T b) { return __hdiv(a, b); }                                                           \
    inline T operator-(T a) { return __hneg(a); }                                                                   \
    inline T operator+(T a) { return a; }                                                                           \
    inline T& operator+=(T& a, T b) { return a = __hadd(a, b); }                                                    \
    inline T& operator-=(T& a, T b) { return a = __hsub(a, b); }                                                    \
    inline T& operator*=(T& a, T b) { return a = __hmul(a, b); }                                                    \
    inline T& operator/=(T& a, T b) { return a = __hdiv(a, b); }                                                    \
    inline bool operator==(T a, T b) { return __heq(a, b); }                                                        \
    inline bool operator!=(T a, T b) { return !__heq(a, b); }                                                       \
    inline bool operator<(T a, T b) { return __hlt(a, b); }                                                         \
    inline bool operator<=(T a, T b) { return __hle(a, b); }                                                        \
    inline bool operator>(T a, T b) { return __hgt(a, b); }                                                         \
    inline bool operator>=(T a, T b) { return __hge(a, b); }                                                        \
    inline T2 __hadd2(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }                                  \
    inline T2 __hsub2(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }                                  \
    inline T2 __hmul2(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }                                  \
    inline T2 __h2div(T2 a, T2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }                                  \
    inline T2 __hneg2(T2 a) { return {__hneg(a.x), __hneg(a.y)}; }                                                  \
    inline T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                                                  \
    inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }                  \
    inline T2 __hfma2_relu(T2 a, T2 b, T2 c) { return {__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)}; }   \
    inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                                  \
    inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                                  \
    inline T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }                                                       \
    inline T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }                                                       \
    inline T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }                                                       \
    inline T2 operator/(T2 a, T2 b) { return __h2div(a, b); }                                                       \
    inline T2 operator-(T2 a) { return __hneg2(a); }                                                                \
    inline T2& operator+=(T2& a, T2 b) { return a = __hadd2(a, b); }                                                \
    inline T2& operator-=(T2& a, T2 b) { return a = __hsub2(a, b); }                                                \
    inline T2& operator*=(T2& a, T2 b) { return a = __hmul2(a, b); }                                                \
    inline T atomicAdd(T* address, T value) {                                                                       \
        return autotune_host::atomic_update<T, unsigned short>(address, [value](T old) { return __hadd(old, value); }); \
    }                                                                                                               \
    inline T2 atomicAdd(T2* address, T2 value) { /* each half is atomic, as on the GPU */                           \
        return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};                                  \
    }
