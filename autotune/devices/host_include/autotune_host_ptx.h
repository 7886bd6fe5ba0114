// What templates/_ptx.cuh declares, on the CPU: asynchronous copies are done at once, so there is nothing to wait for.
#pragma once

template <int BYTES>
inline void copy_async(void* shared, const void* global, bool inside = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "a GPU copies 4, 8 or 16 bytes at once");
    if (reinterpret_cast<size_t>(shared) % BYTES || (inside && reinterpret_cast<size_t>(global) % BYTES)) {
        autotune_stop("misaligned_address", "copy_async", __FILE__, __LINE__);
    }
    if (inside) {
        memcpy(shared, global, BYTES);
    } else {
        memset(shared, 0, BYTES);
    }
}
inline void copy_async_commit() {}
template <int GROUPS>
inline void copy_async_wait() {}

inline void fence_bulk() {}
inline void bulk_store(void* global, const void* shared, int bytes) {
    if (reinterpret_cast<size_t>(shared) % 16 || reinterpret_cast<size_t>(global) % 16 || bytes % 16) {
        autotune_stop("misaligned_address", "bulk_store", __FILE__, __LINE__);
    }
    memcpy(global, shared, static_cast<size_t>(bytes));
}
inline void bulk_store_commit() {}
template <int GROUPS>
inline void bulk_store_wait_read() {}
