// Numbers as arrays store them, to and from double precision: what the self-test makes of its data and reads of outputs.
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

inline double as_stored(double value, Stored dtype) {
    if (dtype == Stored::i32) return value;
    if (dtype == Stored::f32) return static_cast<double>(static_cast<float>(value));
    return dtype == Stored::f16 ? rounded(value, 11, -13) : rounded(value, 8, -125);
}

inline double rounding_of(Stored dtype) {  // of a value, as a fraction of it
    return dtype == Stored::f32 || dtype == Stored::i32 ? 0.0 : std::ldexp(1.0, dtype == Stored::f16 ? -11 : -8);
}

inline double least_rounding(Stored dtype) {  // half of the smallest number above 0, where test data come near that
    return dtype == Stored::f16 ? std::ldexp(1.0, -25) : 0.0;
}

inline uint16_t half_bits(double value) {  // of a value that a half holds
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (size < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(size, 24)));
    int exponent = 0;
    const double fraction = std::frexp(size, &exponent);
    return static_cast<uint16_t>(sign | (exponent + 14) << 10 | static_cast<uint16_t>((2.0 * fraction - 1.0) * 1024.0));
}

inline double half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0    ? std::ldexp(fraction, -24)
                        : exponent == 31 ? (fraction ? NAN : INFINITY)
                                         : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

inline std::vector<unsigned char> encode(const std::vector<double> &values, Stored dtype) {
    const size_t size = bytes_of(dtype);
    std::vector<unsigned char> bytes(size * values.size());
    for (size_t i = 0; i < values.size(); ++i) {
        if (dtype == Stored::i32) {
            const int32_t whole = static_cast<int32_t>(values[i]);
            std::memcpy(&bytes[size * i], &whole, size);
            continue;
        }
        const float value = static_cast<float>(values[i]);
        uint32_t image = 0;
        std::memcpy(&image, &value, sizeof image);
        const uint16_t narrow = dtype == Stored::f16 ? half_bits(values[i]) : static_cast<uint16_t>(image >> 16);
        std::memcpy(&bytes[size * i], dtype == Stored::f32 ? static_cast<void const *>(&image) : &narrow, size);
    }
    return bytes;
}

inline double decode(const unsigned char *at, Stored dtype) {
    uint32_t image = 0;
    uint16_t narrow = 0;
    std::memcpy(bytes_of(dtype) == 4 ? static_cast<void *>(&image) : &narrow, at, bytes_of(dtype));
    if (dtype == Stored::i32) return static_cast<int32_t>(image);
    if (dtype == Stored::f16) return half_value(narrow);
    if (dtype == Stored::bf16) image = uint32_t{narrow} << 16;
    float value = 0.0f;
    std::memcpy(&value, &image, sizeof value);
    return value;
}

}  // namespace autotune_runtime
