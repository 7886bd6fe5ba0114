// What autotune_launch of autotune_host_runtime.cpp is asked; HostLaunch in devices/host.py is the same.
#pragma once
#include <stdint.h>

struct Index {
    unsigned x, y, z;
};

// Which of a block's threads goes on when one waits, and in which order blocks run. Where it is not by threads, the warp
// that runs goes on, through its shuffles, until all its lanes wait for others.
enum AutotuneOrder : unsigned {
    AUTOTUNE_ASCENDING,
    AUTOTUNE_DESCENDING,
    AUTOTUNE_WARPS,    // the next warp is random, and so are lanes and blocks
    AUTOTUNE_THREADS,  // each time another thread of any warp, at random, and blocks, too
};

struct AutotuneArray {  // global memory in which conflicts of blocks are found
    uintptr_t address;
    uint64_t bytes;
    uint64_t poisoned;  // whether nothing but the launch's smem_byte is there before kernels write
};

struct AutotuneLaunch {
    void (*kernel)(void* const*);
    void* const* arguments;
    void* (*smem)();
    uint64_t smem_bytes, tls_module, tls_bytes, order_seed, limit_ns;
    Index grid, block;
    unsigned cluster;  // blocks of one; 0 and 1: they are alone
    unsigned some_blocks;  // or clusters that run, the first, the last and some between; 0: all
    unsigned cores;
    unsigned order;      // AutotuneOrder
    unsigned smem_byte;  // fills shared memory before a block starts
    unsigned array_count;
    const AutotuneArray* arrays;
};
