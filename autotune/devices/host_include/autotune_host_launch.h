// What autotune_launch of autotune_host_runtime.cpp is asked; HostLaunch in devices/host.py is the same.
#pragma once
#include <stdint.h>

struct Index {
    unsigned x, y, z;
};

struct AutotuneLaunch {
    void (*kernel)(void* const*);
    void* const* arguments;
    void* (*smem)();
    uint64_t smem_bytes, tls_module, tls_bytes, order_seed, limit_ns;
    Index grid, block;
    unsigned cluster;  // blocks of one; 0 and 1: they are alone
    unsigned cores;
    unsigned zeroed_smem;  // not 0: shared memory holds zeros instead of NaN before a block starts
};
