#pragma once

// A copy of an operand whose rows TMA does not load, [batch, ROWS, ROW], with zeros behind each row: whole vectors of 16 bytes. Needs T and the
// family's constants.

extern "C" __global__ void __launch_bounds__(256) pad_rows(const T* __restrict__ operand, T* __restrict__ copy, int batch) {
    constexpr int VECTOR = 16 / static_cast<int>(sizeof(T)), ROW_VECTORS = (ROW + VECTOR - 1) / VECTOR;
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= static_cast<long long>(batch) * ROWS * ROW_VECTORS) return;
    const int first = static_cast<int>(i % ROW_VECTORS) * VECTOR;
    const T* const from = operand + i / ROW_VECTORS * ROW + first;
    AlignedArray<T, VECTOR> elements;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) elements.at[j] = first + j < ROW ? from[j] : from_float<T>(0.0f);
    reinterpret_cast<AlignedArray<T, VECTOR>*>(copy)[i] = elements;
}
