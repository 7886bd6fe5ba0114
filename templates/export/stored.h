// Conversion of stored numbers to and from double precision, for the self-test's data and outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "operation.h"

namespace autotune_runtime {

inline double rounded(double value, int bits, int least_exponent) {  // to nearest, ties to even
    int exponent = 0;
    std::frexp(value, &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent, least_exponent) - bits);
    return std::nearbyint(value / unit) * unit;
}

// A floating-point type narrower than bf16's 8 bits of exponent.
struct Narrow {
    int exponent_bits, fraction_bits;
    double most;  // larger numbers become this one
    constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

constexpr bool is_narrow(Stored dtype) { return dtype == Stored::f16 || dtype == Stored::e4m3 || dtype == Stored::e5m2; }

constexpr Narrow narrow(Stored dtype) {
    return dtype == Stored::f16 ? Narrow{5, 10, INFINITY} : dtype == Stored::e4m3 ? Narrow{4, 3, 448.0} : Narrow{5, 2, 57344.0};
}

inline double as_stored(double value, Stored dtype) {
    if (dtype == Stored::f32) return static_cast<double>(static_cast<float>(value));
    if (dtype == Stored::bf16) return static_cast<double>(static_cast<float>(rounded(value, 8, -125)));
    if (!is_float(dtype)) return std::nearbyint(value);
    if (!is_narrow(dtype)) return value;
    const Narrow kind = narrow(dtype);
    const double nearest = rounded(value, kind.fraction_bits + 1, 2 - kind.bias());
    if (dtype == Stored::f16 && std::fabs(nearest) > 65504.0) return std::copysign(INFINITY, nearest);
    return std::max(-kind.most, std::min(kind.most, nearest));
}

inline double rounding_of(Stored dtype) {  // of a value, as a fraction of it
    if (dtype == Stored::bf16) return std::ldexp(1.0, -8);
    return is_narrow(dtype) ? std::ldexp(1.0, -narrow(dtype).fraction_bits - 1) : 0.0;
}

inline double least_rounding(Stored dtype) {  // half of the smallest number above 0, if test data come near it
    if (!is_float(dtype)) return 0.5;
    return is_narrow(dtype) ? std::ldexp(1.0, -narrow(dtype).bias() - narrow(dtype).fraction_bits) : 0.0;
}

inline unsigned narrow_bits(double value, const Narrow &kind) {  // of a value that the type can hold
    const unsigned sign = std::signbit(value) ? 1u << (kind.exponent_bits + kind.fraction_bits) : 0;
    const double size = std::fabs(value);
    if (size < std::ldexp(1.0, 1 - kind.bias()))
        return sign | static_cast<unsigned>(std::ldexp(size, kind.bias() - 1 + kind.fraction_bits));
    int exponent = 0;
    const double fraction = 2.0 * std::frexp(size, &exponent) - 1.0;
    return sign | static_cast<unsigned>(exponent - 1 + kind.bias()) << kind.fraction_bits |
           static_cast<unsigned>(std::ldexp(fraction, kind.fraction_bits));
}

inline double narrow_value(unsigned bits, const Narrow &kind) {
    const unsigned exponents = (1u << kind.exponent_bits) - 1, fractions = (1u << kind.fraction_bits) - 1;
    const unsigned exponent = bits >> kind.fraction_bits & exponents, fraction = bits & fractions;
    const bool infinite = kind.exponent_bits == 5 && exponent == exponents;  // e4m3 has one NaN and no infinity
    const bool nan = infinite ? fraction != 0 : exponent == exponents && fraction == fractions;
    const double size = nan ? NAN
                        : infinite ? INFINITY
                        : exponent == 0 ? std::ldexp(fraction, 1 - kind.bias() - kind.fraction_bits)
                                        : std::ldexp(fractions + 1 + fraction,
                                                     static_cast<int>(exponent) - kind.bias() - kind.fraction_bits);
    return bits >> (kind.exponent_bits + kind.fraction_bits) & 1 ? -size : size;
}

template <class T>
void put(unsigned char *to, T value) { std::memcpy(to, &value, sizeof value); }

template <class T>
T taken(const unsigned char *at) {
    T value{};
    std::memcpy(&value, at, sizeof value);
    return value;
}

inline void encode(double value, Stored dtype, unsigned char *to) {
    const float single = static_cast<float>(value);
    switch (dtype) {
        case Stored::f32: return put(to, single);
        case Stored::f16: return put(to, static_cast<uint16_t>(narrow_bits(value, narrow(dtype))));
        case Stored::bf16: return put(to, static_cast<uint16_t>(taken<uint32_t>(reinterpret_cast<const unsigned char *>(&single)) >> 16));
        case Stored::i32: return put(to, static_cast<int32_t>(value));
        case Stored::f64: return put(to, value);
        case Stored::e4m3:
        case Stored::e5m2: return put(to, static_cast<uint8_t>(narrow_bits(value, narrow(dtype))));
        case Stored::i8: return put(to, static_cast<int8_t>(value));
        case Stored::u8: return put(to, static_cast<uint8_t>(value));
        case Stored::i64: return put(to, static_cast<int64_t>(value));
    }
}

inline double decode(const unsigned char *at, Stored dtype) {
    switch (dtype) {
        case Stored::f32: return taken<float>(at);
        case Stored::f16: return narrow_value(taken<uint16_t>(at), narrow(dtype));
        case Stored::bf16: {
            const uint32_t image = uint32_t{taken<uint16_t>(at)} << 16;
            return taken<float>(reinterpret_cast<const unsigned char *>(&image));
        }
        case Stored::i32: return taken<int32_t>(at);
        case Stored::f64: return taken<double>(at);
        case Stored::e4m3:
        case Stored::e5m2: return narrow_value(taken<uint8_t>(at), narrow(dtype));
        case Stored::i8: return taken<int8_t>(at);
        case Stored::u8: return taken<uint8_t>(at);
        case Stored::i64: return static_cast<double>(taken<int64_t>(at));
    }
    return NAN;
}

inline std::vector<unsigned char> encode(const std::vector<double> &values, Stored dtype) {
    std::vector<unsigned char> bytes(bytes_of(dtype) * values.size());
    for (size_t i = 0; i < values.size(); ++i) encode(values[i], dtype, &bytes[bytes_of(dtype) * i]);
    return bytes;
}

}  // namespace autotune_runtime
