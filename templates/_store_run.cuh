#pragma once
#include "_element.cuh"

// Writes COUNT staged outputs in order, by THREADS threads, as they lie in y within 16 bytes: the first one at `phase`.
template <int THREADS, typename T>
__device__ __forceinline__ void store_run(T* __restrict__ y, const T* staged, int phase, int count) {
    constexpr int VECTOR = 16 / sizeof(T);
    using Vector = AlignedArray<T, VECTOR>;
    const int last = phase + count;
    for (int i = static_cast<int>(threadIdx.x) * VECTOR; i < last; i += THREADS * VECTOR) {
        if (i >= phase && i + VECTOR <= last) {
            *reinterpret_cast<Vector*>(y + (i - phase)) = *reinterpret_cast<const Vector*>(staged + i);
        } else {
            for (int j = max(i, phase); j < min(i + VECTOR, last); ++j) y[j - phase] = staged[j];
        }
    }
}
