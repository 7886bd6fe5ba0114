#pragma once
#include "_ptx_barrier.cuh"

// A block's run of inputs, which begins and ends on a multiple of 16 bytes, copied to shared memory at once. Needs T.

// Starts it, `first` elements from a plane's begin, which would lie where the result is. The barrier lies before it.
__device__ __forceinline__ const T* copy_inputs(unsigned char* smem, const T* __restrict__ x, int first_plane, int first, int count) {
    Barrier* const copied = reinterpret_cast<Barrier*>(smem);
    T* const staged = reinterpret_cast<T*>(smem + 16);
    if (threadIdx.x == 0) {
        barrier_init(copied, 1);
        barrier_init_fence();
        barrier_arrive_expect(copied, count * static_cast<int>(sizeof(T)));
        if (count > 0) bulk_load(staged, x + (static_cast<long long>(first_plane) * (H * W) + first), count * static_cast<int>(sizeof(T)), copied);
    }
    return staged - first;
}

__device__ __forceinline__ void wait_for_inputs(unsigned char* smem) {
    __syncthreads();  // the barrier is there
    barrier_wait(reinterpret_cast<Barrier*>(smem), 0);
}
