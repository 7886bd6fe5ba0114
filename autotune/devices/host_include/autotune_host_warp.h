// Warp primitives: each lane leaves its value with the runtime and gets its result when all lanes of the mask came.
#pragma once

namespace autotune_host {
enum WarpKind { SYNC, BALLOT, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, TOGETHER };  // as in the runtime
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
