// What CUDA C++ takes for granted, for a C++17 compiler (g++ 11 or clang++, x86-64 or any other CPU): included before
// the unmodified text of a kernel, which then runs on the CPU. One CUDA thread is one fiber of the runtime in
// autotune_host_runtime.cpp; a block stays on one OS thread, so shared memory is thread_local. Of the standard headers
// that nvcc includes only <limits.h> is: <cmath> alone would double the time to compile a small kernel.
// __CUDACC__ and __CUDA_ARCH__ stay undefined: that is how a kernel tells the CPU from a GPU.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __shared__ thread_local __attribute__((used))  // not dropped where a thread reads only what it wrote
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

#include <limits.h>

// The C library, as nvcc declares it before a kernel's text.
typedef __SIZE_TYPE__ size_t;
extern "C" {
int printf(const char*, ...);
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;

// The runtime. The line is the caller's, for messages.
[[noreturn]] void autotune_stop(const char* reason, const char* what, const char* file, int line);
unsigned autotune_barrier(int predicate, int line);
void autotune_some_barrier(int id, int threads, int waits, int line);
void autotune_cluster_barrier(int line);
void* autotune_cluster_smem(const void* mine, unsigned rank, int line);
unsigned long long autotune_warp(int kind, unsigned mask, unsigned long long value, unsigned source, unsigned width,
                                 int line);
void autotune_sleep(int line);
int autotune_wake();
void autotune_linger();
struct AutotuneCopy {
    void* to;
    const void* from;
    size_t bytes;
    const void* owner;
    unsigned group;
    void (*perform)(const AutotuneCopy* copy);  // nullptr: the bytes as they are
    unsigned char what[160];                    // that it is told
};
void autotune_defer(const AutotuneCopy* copy);
void autotune_cluster_defer(const AutotuneCopy* copy, unsigned rank);
void autotune_cluster_wake(unsigned rank);
__attribute__((weak)) unsigned autotune_cluster_rank();  // of the block in its cluster; 0 where it is alone
struct AutotuneLateCopy {  // of a thread: its source is read, its destination not yet written
    void* to;
    unsigned bytes, group;
    unsigned char data[16];
};
int autotune_late(const AutotuneLateCopy* copy, AutotuneLateCopy* oldest);
void autotune_late_commit();
int autotune_late_due(int groups, AutotuneLateCopy* due);
void autotune_commit();
void autotune_fence(int device);
void autotune_read_only(const void* address, size_t bytes);
void autotune_atomic(const void* address, size_t bytes);
void autotune_barrier_object(const void* object, size_t bytes);
int autotune_due(const void* owner, unsigned groups, AutotuneCopy* due);
__attribute__((weak)) void* autotune_smem_address();  // of a kernel's dynamic shared memory
}

#undef assert
#define assert(condition) \
    ((condition) ? static_cast<void>(0) : autotune_stop("assert", #condition, __FILE__, __LINE__))
#define __trap() autotune_stop("trap", "__trap()", __FILE__, __LINE__)

#include "autotune_host_vector.h"

#include "autotune_host_math.h"

// Where a thread is. The runtime writes these; a thread never sees them change.
#define AUTOTUNE_CONTEXT extern "C" __thread __attribute__((tls_model("initial-exec")))
AUTOTUNE_CONTEXT const uint3 threadIdx asm("autotune_thread_idx");
AUTOTUNE_CONTEXT const uint3 blockIdx asm("autotune_block_idx");
AUTOTUNE_CONTEXT const dim3 blockDim asm("autotune_block_dim");
AUTOTUNE_CONTEXT const dim3 gridDim asm("autotune_grid_dim");
#undef AUTOTUNE_CONTEXT
constexpr int warpSize = 32;

// Barriers.
inline void __syncthreads(int line = __builtin_LINE()) { autotune_barrier(0, line); }
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(autotune_barrier(predicate, line));
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) { return autotune_barrier(predicate, line) != 0; }
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) { return autotune_barrier(!predicate, line) == 0; }
inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#ifdef AUTOTUNE_CHECKED
    autotune_fence(1);
#endif
}
inline void __threadfence_block() {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#ifdef AUTOTUNE_CHECKED
    autotune_fence(0);
#endif
}
inline void __threadfence_system() { __threadfence(); }

#include "autotune_host_warp.h"

#include "autotune_host_atomic.h"

// A variable of shared memory where kernels are checked: the compiler does not see what it refers to (host_smem.py).
namespace autotune_host {
template <class T>
inline __attribute__((always_inline)) T& shared_reference(T& variable) {
    T* place = &variable;
    asm("" : "+r"(place));
    return *place;
}
}  // namespace autotune_host

// How the runtime calls a kernel: an array of pointers to the arguments.
namespace autotune_host {
template <unsigned... I>
struct Indices {};
template <unsigned N, unsigned... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I>
struct Count<0, I...> {
    using type = Indices<I...>;
};
template <class... A, unsigned... I>
inline void call(void (*kernel)(A...), void* const* arguments, Indices<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
inline void call(void (*kernel)(A...), void* const* arguments) {
    call(kernel, arguments, typename Count<sizeof...(A)>::type());
}
template <class... A>
inline int sizes(void (*)(A...), unsigned* sizes_bytes) {  // room for 64
    static_assert(sizeof...(A) <= 64, "a kernel takes at most 64 arguments here");
    int count = 0;
    ((sizes_bytes[count++] = sizeof(A)), ...);
    return count;
}
}  // namespace autotune_host

#define AUTOTUNE_ENTRY(kernel)                                                                              \
    extern "C" void autotune_call_##kernel(void* const* arguments) { autotune_host::call(&kernel, arguments); } \
    extern "C" int autotune_sizes_##kernel(unsigned* sizes) { return autotune_host::sizes(&kernel, sizes); }

// Of a kernel whose text has __cluster_dims__(blocks, 1, 1).
#define AUTOTUNE_CLUSTER(kernel, blocks) \
    extern "C" __attribute__((used, visibility("default"))) const unsigned autotune_cluster_##kernel = blocks;

// Of a kernel whose text has __launch_bounds__(threads).
#define AUTOTUNE_LAUNCH_BOUNDS(kernel, threads) \
    extern "C" __attribute__((used, visibility("default"))) const unsigned autotune_launch_bounds_##kernel = threads;

// The memory behind `extern __shared__ T name[];`. The label makes it the same symbol without naming T.
#define AUTOTUNE_SMEM(name)                                                                 \
    __attribute__((aligned(1024))) thread_local unsigned char autotune_smem[232448] asm(#name); \
    extern "C" void* autotune_smem_address() { return autotune_smem; }
