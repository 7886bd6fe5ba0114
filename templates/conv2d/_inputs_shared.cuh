#pragma once

// A block's run of inputs, copied to shared memory by all threads. Needs T, _ptx.cuh and the family's constants.

// Starts it, `first` elements from a plane's begin, which would lie where the result is. The run lies in shared memory as it does in x within 16 bytes.
__device__ __forceinline__ const T* copy_inputs(unsigned char* smem, const T* __restrict__ x, int first_plane, int first, int count) {
    const long long begin = static_cast<long long>(first_plane) * (H * W) + first;
    T* const staged = reinterpret_cast<T*>(smem);
    const int phase = ALIGNED ? 0 : static_cast<int>(begin % VECTOR);
    for (int i = static_cast<int>(threadIdx.x) * VECTOR; i < phase + count; i += THREADS * VECTOR) {
        if constexpr (EXACT) {
            copy_async<16>(staged + i, x + begin + i);
        } else {
            const int elements = min(VECTOR, phase + count - i);
            copy_async_first<16>(staged + i, x + begin - phase + i, elements * static_cast<int>(sizeof(T)));
        }
    }
    copy_async_commit();
    return staged + phase - first;
}

__device__ __forceinline__ void wait_for_inputs(unsigned char*) {
    copy_async_wait<0>();
    __syncthreads();
}
