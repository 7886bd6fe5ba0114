"""The host device's runtime, a library in C++: its interface, and loading it into this process."""

from __future__ import annotations

import ctypes
import os

from autotune.compilation.compile import Binary
from autotune.devices.device import Order
from autotune.devices.host_compile import RUNTIME_NAME, compile_runtime

_RTLD_NOLOAD = 4
ORDERS: tuple[Order, ...] = ("ascending", "descending", "warps", "threads")
"""As in AutotuneOrder of autotune_host_launch.h."""


class WatchedArray(ctypes.Structure):
    """AutotuneArray of autotune_host_launch.h."""

    address: int
    _fields_ = (("address", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64), ("poisoned", ctypes.c_uint64))


class HostLaunch(ctypes.Structure):
    """AutotuneLaunch of autotune_host_runtime.cpp."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("smem", ctypes.c_void_p),
        ("smem_bytes", ctypes.c_uint64),
        ("tls_module", ctypes.c_uint64),
        ("tls_bytes", ctypes.c_uint64),
        ("order_seed", ctypes.c_uint64),
        ("limit_ns", ctypes.c_uint64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint),
        ("cores", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("smem_byte", ctypes.c_uint),
        ("array_count", ctypes.c_uint),
        ("arrays", ctypes.c_void_p),
    )


def load_runtime(cxx: str, runtime: Binary | None) -> ctypes.CDLL:
    """The runtime of this process, loaded on first use and never unloaded."""
    try:
        return ctypes.CDLL(RUNTIME_NAME, mode=ctypes.RTLD_GLOBAL | _RTLD_NOLOAD)
    except OSError:
        pass
    fd = os.memfd_create("autotune-runtime")
    with open(fd, "wb", closefd=False) as file:
        file.write(runtime.image if runtime else compile_runtime(cxx))
    return ctypes.CDLL(f"/proc/self/fd/{fd}", mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)


def symbol_address(library: ctypes.CDLL, name: str) -> int:
    """Address of a symbol, 0 if there is none."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return 0
