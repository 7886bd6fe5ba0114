// Integers with the arithmetic of expressions in a kernel family's header: division rounds down, and an overflow of 64
// bits or a division by zero is an error (Unevaluable).
#pragma once

#include <cstdint>
#include <limits>

namespace autotune_runtime {

struct Unevaluable {};

class Int {
public:
    constexpr Int(int64_t value = 0) : value_(value) {}
    constexpr int64_t value() const { return value_; }
    constexpr explicit operator bool() const { return value_ != 0; }

private:
    int64_t value_;
};

using Whole = Int;  // a number in an expression

constexpr bool operator==(Int a, Int b) { return a.value() == b.value(); }
constexpr bool operator!=(Int a, Int b) { return a.value() != b.value(); }
constexpr bool operator<(Int a, Int b) { return a.value() < b.value(); }
constexpr bool operator<=(Int a, Int b) { return a.value() <= b.value(); }
constexpr bool operator>(Int a, Int b) { return a.value() > b.value(); }
constexpr bool operator>=(Int a, Int b) { return a.value() >= b.value(); }

inline Int operator-(Int a) {
    if (a.value() == std::numeric_limits<int64_t>::min()) throw Unevaluable();
    return -a.value();
}

inline Int operator+(Int a, Int b) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
    if (b.value() > 0 ? a.value() > most - b.value() : a.value() < least - b.value()) throw Unevaluable();
    return a.value() + b.value();
}

inline Int operator-(Int a, Int b) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
    if (b.value() < 0 ? a.value() > most + b.value() : a.value() < least + b.value()) throw Unevaluable();
    return a.value() - b.value();
}

inline Int operator*(Int a, Int b) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    const auto size = [](int64_t value) {
        return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    };
    if (a.value() != 0 && size(b.value()) > static_cast<uint64_t>(most) / size(a.value())) throw Unevaluable();
    return a.value() * b.value();
}

inline Int floor_div(Int a, Int b) {
    if (b == 0 || (a == std::numeric_limits<int64_t>::min() && b == -1)) throw Unevaluable();
    const int64_t quotient = a.value() / b.value();
    return a.value() % b.value() != 0 && (a.value() < 0) != (b.value() < 0) ? quotient - 1 : quotient;
}

inline Int floor_mod(Int a, Int b) { return a - floor_div(a, b) * b; }
inline Int operator/(Int a, Int b) { return floor_div(a, b); }
inline Int operator%(Int a, Int b) { return floor_mod(a, b); }
inline Int ceil_div(Int a, Int b) { return -floor_div(-a, b); }
inline Int round_up(Int value, Int multiple) { return ceil_div(value, multiple) * multiple; }
inline Int min(Int a, Int b) { return b < a ? b : a; }
inline Int max(Int a, Int b) { return b > a ? b : a; }
inline Int max_registers(Int warps) { return min(Int(255), Int(65536) / (Int(32) * round_up(warps, Int(4))) / Int(8) * Int(8)); }
inline bool is_pow2(Int value) { return value > 0 && (value.value() & (value.value() - 1)) == 0; }

}  // namespace autotune_runtime
