// Warp primitives: each lane leaves its value with the runtime and gets its result when all lanes of the mask came.
#pragma once

namespace autotune_host {
enum WarpKind { SYNC, BALLOT, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, TOGETHER, ACTIVE };  // as in the runtime
template <class T>
inline T shuffle(int kind, unsigned mask, T value, unsigned source, int width, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = autotune_warp(kind, mask, bits, source, static_cast<unsigned>(width), line);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
}  // namespace autotune_host

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    autotune_warp(autotune_host::SYNC, mask, 0, 0, 32, line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return static_cast<unsigned>(autotune_warp(autotune_host::BALLOT, mask, predicate != 0, 0, 32, line));
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return autotune_warp(autotune_host::BALLOT, mask, predicate != 0, 0, 32, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return autotune_warp(autotune_host::BALLOT, mask, predicate == 0, 0, 32, line) == 0;
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    return autotune_host::shuffle(autotune_host::SHFL, mask, value, static_cast<unsigned>(source), width, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    return autotune_host::shuffle(autotune_host::SHFL_UP, mask, value, delta, width, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    return autotune_host::shuffle(autotune_host::SHFL_DOWN, mask, value, delta, width, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {
    return autotune_host::shuffle(autotune_host::SHFL_XOR, mask, value, static_cast<unsigned>(lanes), width, line);
}

// The lanes that come here before the block can go on without them, which is as many as a GPU's scheduler may have.
inline unsigned __activemask(int line = __builtin_LINE()) {
    return static_cast<unsigned>(autotune_warp(autotune_host::ACTIVE, 0xffffffffu, 0, 0, 32, line));
}

namespace autotune_host {
// Of the values of all lanes of a mask.
template <class T, class Combine>
inline T reduce(unsigned mask, T value, Combine combine, int line) {
    unsigned long long lanes = mask & ~(1ull << __builtin_ctz(mask));
    T result = __shfl_sync(mask, value, __builtin_ctz(mask), 32, line);
    for (; lanes; lanes &= lanes - 1) result = combine(result, __shfl_sync(mask, value, __builtin_ctzll(lanes), 32, line));
    return result;
}
}  // namespace autotune_host

#define AUTOTUNE_REDUCE(T, name, combined)                                                            \
    inline T __reduce_##name##_sync(unsigned mask, T value, int line = __builtin_LINE()) {            \
        return autotune_host::reduce(mask, value, [](T a, T b) -> T { return combined; }, line);      \
    }
AUTOTUNE_REDUCE(unsigned, add, a + b)
AUTOTUNE_REDUCE(unsigned, min, a < b ? a : b)
AUTOTUNE_REDUCE(unsigned, max, a < b ? b : a)
AUTOTUNE_REDUCE(int, add, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
AUTOTUNE_REDUCE(int, min, a < b ? a : b)
AUTOTUNE_REDUCE(int, max, a < b ? b : a)
AUTOTUNE_REDUCE(unsigned, and, a & b)
AUTOTUNE_REDUCE(unsigned, or, a | b)
AUTOTUNE_REDUCE(unsigned, xor, a ^ b)
#undef AUTOTUNE_REDUCE

// The lanes of a mask that have the same value.
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, int line = __builtin_LINE()) {
    unsigned found = 0;
    for (unsigned long long lanes = mask; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctzll(lanes);
        if (__shfl_sync(mask, value, lane, 32, line) == value) found |= 1u << lane;
    }
    return found;
}
