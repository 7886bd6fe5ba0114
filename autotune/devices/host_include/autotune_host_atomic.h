// CUDA's atomic functions. Each returns the old value; blocks run on several cores, so they are atomic here too.
#pragma once

namespace autotune_host {
template <class T, class Word, class Update>
inline T atomic_update(T* address, Update update) {
    static_assert(sizeof(T) == sizeof(Word), "one word is exchanged");
    Word* const word = reinterpret_cast<Word*>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, bits_as<Word>(update(bits_as<T>(old))), true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return bits_as<T>(old);
}
}  // namespace autotune_host

#define AUTOTUNE_ATOMIC_INTEGER(T)                                                                                 \
    inline T atomicAdd(T* address, T value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }       \
    inline T atomicSub(T* address, T value) { return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED); }       \
    inline T atomicAnd(T* address, T value) { return __atomic_fetch_and(address, value, __ATOMIC_RELAXED); }       \
    inline T atomicOr(T* address, T value) { return __atomic_fetch_or(address, value, __ATOMIC_RELAXED); }         \
    inline T atomicXor(T* address, T value) { return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED); }       \
    inline T atomicExch(T* address, T value) { return __atomic_exchange_n(address, value, __ATOMIC_RELAXED); }     \
    inline T atomicCAS(T* address, T compare, T value) {                                                           \
        __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);          \
        return compare;                                                                                            \
    }                                                                                                              \
    inline T atomicMin(T* address, T value) {                                                                      \
        return autotune_host::atomic_update<T, T>(address, [value](T old) { return old < value ? old : value; });  \
    }                                                                                                              \
    inline T atomicMax(T* address, T value) {                                                                      \
        return autotune_host::atomic_update<T, T>(address, [value](T old) { return old > value ? old : value; });  \
    }
AUTOTUNE_ATOMIC_INTEGER(int)
AUTOTUNE_ATOMIC_INTEGER(unsigned)
AUTOTUNE_ATOMIC_INTEGER(unsigned long long)
AUTOTUNE_ATOMIC_INTEGER(long long)
#undef AUTOTUNE_ATOMIC_INTEGER

inline float atomicAdd(float* address, float value) {
    return autotune_host::atomic_update<float, unsigned>(address, [value](float old) { return old + value; });
}
inline double atomicAdd(double* address, double value) {
    return autotune_host::atomic_update<double, unsigned long long>(address, [value](double old) { return old + value; });
}
inline float atomicExch(float* address, float value) {
    return autotune_host::atomic_update<float, unsigned>(address, [value](float) { return value; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
    return autotune_host::atomic_update<unsigned, unsigned>(address, [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* address, unsigned limit) {
    return autotune_host::atomic_update<unsigned, unsigned>(
        address, [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
