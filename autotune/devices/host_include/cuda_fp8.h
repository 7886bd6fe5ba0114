// The host device's cuda_fp8.h: the two types, their pairs and quadruples, and conversions. As in CUDA, what is too large
// for a type becomes its largest number.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
typedef unsigned char __nv_fp8_storage_t;

namespace autotune_host {

// EXPONENT_BITS and FRACTION_BITS of a format, and the code of its largest finite number.
template <int FRACTION_BITS, int BIAS, unsigned MOST>
struct EightBits {
    static float widen(unsigned char bits) {
        const unsigned size = bits & 0x7fu, exponent = size >> FRACTION_BITS, fraction = size & ((1u << FRACTION_BITS) - 1);
        float value = 0.0f;
        if (size > MOST) value = MOST == 0x7bu && fraction == 0 ? __builtin_inff() : __builtin_nanf("");
        else if (exponent == 0) value = __builtin_ldexpf(static_cast<float>(fraction), 1 - BIAS - FRACTION_BITS);
        else value = bits_as<float>((exponent + 127u - BIAS) << 23 | fraction << (23 - FRACTION_BITS));
        return bits & 0x80u ? -value : value;
    }
    static unsigned char narrow(double value) {
        const unsigned sign = __builtin_signbit(value) ? 0x80u : 0u;
        if (value != value) return static_cast<unsigned char>(sign | 0x7fu);
        const double size = __builtin_fabs(value);
        if (size >= static_cast<double>(widen(MOST))) return static_cast<unsigned char>(sign | MOST);
        int exponent = 2 - BIAS;
        if (size > 0) __builtin_frexp(size, &exponent);  // size is below 2^exponent
        const int place = (exponent > 2 - BIAS ? exponent : 2 - BIAS) - 1 - FRACTION_BITS;  // of the last bit
        const double whole = __builtin_rint(__builtin_ldexp(size, -place));  // to nearest, ties to even
        const unsigned implicit = static_cast<unsigned>(place + FRACTION_BITS - 1 + BIAS) << FRACTION_BITS;
        return static_cast<unsigned char>(sign | (static_cast<unsigned>(whole) + implicit));
    }
};

using E4m3 = EightBits<3, 7, 0x7e>;
using E5m2 = EightBits<2, 15, 0x7b>;

}  // namespace autotune_host

#define AUTOTUNE_EIGHT_BITS(T, T2, T4, Format)                                                               \
    struct T {                                                                                              \
        __nv_fp8_storage_t __x;                                                                             \
        T() = default;                                                                                      \
        explicit T(float value) : __x(autotune_host::Format::narrow(value)) {}                              \
        explicit T(double value) : __x(autotune_host::Format::narrow(value)) {}                             \
        explicit T(int value) : __x(autotune_host::Format::narrow(value)) {}                                \
        explicit T(__half value) : T(static_cast<float>(value)) {}                                          \
        explicit T(__nv_bfloat16 value) : T(static_cast<float>(value)) {}                                   \
        explicit operator float() const { return autotune_host::Format::widen(__x); }                       \
        explicit operator double() const { return autotune_host::Format::widen(__x); }                      \
        explicit operator __half() const { return __half(autotune_host::Format::widen(__x)); }              \
        explicit operator __nv_bfloat16() const { return __nv_bfloat16(autotune_host::Format::widen(__x)); } \
    };                                                                                                      \
    struct __attribute__((aligned(2))) T2 {                                                                 \
        unsigned short __x;                                                                                 \
        T2() = default;                                                                                     \
        explicit T2(float2 a) : __x(static_cast<unsigned short>(T(a.x).__x | T(a.y).__x << 8)) {}           \
        explicit operator float2() const {                                                                  \
            return {autotune_host::Format::widen(__x & 0xffu), autotune_host::Format::widen(__x >> 8)};     \
        }                                                                                                   \
    };                                                                                                      \
    struct __attribute__((aligned(4))) T4 {                                                                 \
        unsigned __x;                                                                                       \
        T4() = default;                                                                                     \
        explicit T4(float4 a)                                                                               \
            : __x(T(a.x).__x | T(a.y).__x << 8 | T(a.z).__x << 16 | static_cast<unsigned>(T(a.w).__x) << 24) {} \
        explicit operator float4() const {                                                                  \
            using F = autotune_host::Format;                                                                \
            return {F::widen(__x & 0xffu), F::widen(__x >> 8 & 0xffu), F::widen(__x >> 16 & 0xffu), F::widen(__x >> 24)}; \
        }                                                                                                   \
    };

AUTOTUNE_EIGHT_BITS(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, E4m3)
AUTOTUNE_EIGHT_BITS(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, E5m2)
#undef AUTOTUNE_EIGHT_BITS

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t, __nv_fp8_interpretation_t kind) {
    return kind == __NV_E4M3 ? __nv_fp8_e4m3(value).__x : __nv_fp8_e5m2(value).__x;
}
