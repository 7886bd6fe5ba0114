#pragma once

// Elements between a place in memory and the 16-byte boundary before it. What is staged, or copied, lies like its place in memory.
template <typename E>
__device__ __forceinline__ int alignment_offset(const E* place) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(place) % 16 / sizeof(E));
}
