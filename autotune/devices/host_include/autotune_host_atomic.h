// CUDA's atomic functions. Each returns the old value; blocks run on several cores, so they are atomic here too.
#pragma once

// Where kernels are checked, AddressSanitizer calls the runtime for each access. It must take these for atomic ones.
#ifdef AUTOTUNE_CHECKED
#define AUTOTUNE_ATOMIC __attribute__((no_sanitize("address"))) inline
#define AUTOTUNE_ATOMIC_ACCESS(address) autotune_atomic(address, sizeof *(address))
#else
#define AUTOTUNE_ATOMIC inline
#define AUTOTUNE_ATOMIC_ACCESS(address) static_cast<void>(0)
#endif

namespace autotune_host {
template <class T, class Word, class Update>
AUTOTUNE_ATOMIC T atomic_update(T* address, Update update) {
    static_assert(sizeof(T) == sizeof(Word), "one word is exchanged");
    AUTOTUNE_ATOMIC_ACCESS(address);
    Word* const word = reinterpret_cast<Word*>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, bits_as<Word>(update(bits_as<T>(old))), true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return bits_as<T>(old);
}
}  // namespace autotune_host

#define AUTOTUNE_FETCH(T, name, builtin)                    \
    AUTOTUNE_ATOMIC T name(T* address, T value) {           \
        AUTOTUNE_ATOMIC_ACCESS(address);                    \
        return builtin(address, value, __ATOMIC_RELAXED);   \
    }
#define AUTOTUNE_ATOMIC_INTEGER(T)                                                                                 \
    AUTOTUNE_FETCH(T, atomicAdd, __atomic_fetch_add)                                                               \
    AUTOTUNE_FETCH(T, atomicSub, __atomic_fetch_sub)                                                               \
    AUTOTUNE_FETCH(T, atomicAnd, __atomic_fetch_and)                                                               \
    AUTOTUNE_FETCH(T, atomicOr, __atomic_fetch_or)                                                                 \
    AUTOTUNE_FETCH(T, atomicXor, __atomic_fetch_xor)                                                               \
    AUTOTUNE_FETCH(T, atomicExch, __atomic_exchange_n)                                                             \
    AUTOTUNE_ATOMIC T atomicCAS(T* address, T compare, T value) {                                                  \
        AUTOTUNE_ATOMIC_ACCESS(address);                                                                           \
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
#undef AUTOTUNE_FETCH

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
