"""Run a kernel with the thread switch for other CPUs: `python -m tests.host.portable CXX`.

A process has one runtime.
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np

from autotune.devices.host_compile import compile_runtime
from autotune.devices.host_runtime import ORDERS
from tests.compiled import host_device

from .kernels import Bench
from .test_barriers import REVERSE, N, reversed_reference


def main() -> None:
    """Load that runtime first; the device then uses it."""
    cxx = sys.argv[1]
    fd = os.memfd_create("portable")
    os.write(fd, compile_runtime(cxx, "-DAUTOTUNE_UCONTEXT"))
    ctypes.CDLL(f"/proc/self/fd/{fd}", mode=ctypes.RTLD_GLOBAL)
    x = np.arange(N, dtype=np.float32)
    for order in ORDERS:
        bench = Bench(host_device(cxx), cxx)
        arguments = (x, np.zeros_like(x), np.int32(N))
        _, y = bench.run(REVERSE, "reverse", arguments, grid=20, block=96, smem_bytes=384, order=order)
        np.testing.assert_array_equal(y, reversed_reference(x))
    with open("/proc/self/maps") as maps:
        assert "autotune-runtime" not in maps.read(), "the device loaded its own runtime"
    print("ran")


if __name__ == "__main__":
    main()
