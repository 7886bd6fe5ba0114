"""The host device's runtime, which is a C++ library: load it into this process, and define its structures."""

from __future__ import annotations

import ctypes
import os

from autotune.compilation.compile import Binary
from autotune.devices.device import Order
from autotune.devices.host_compile import RUNTIME_NAME, compile_runtime
from autotune.devices.tensor_map import ELEMENT_BYTES, BoundTensorMap
from autotune.errors import Rejected
from autotune.trial import Outcome

_RTLD_NOLOAD = 4
ORDERS: tuple[Order, ...] = ("ascending", "descending", "warps", "threads")
"""The orders, in the sequence of AutotuneOrder in autotune_host_launch.h."""


class WatchedArray(ctypes.Structure):
    """The struct AutotuneArray from autotune_host_launch.h."""

    address: int
    _fields_ = (("address", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64), ("poisoned", ctypes.c_uint64))


class HostLaunch(ctypes.Structure):
    """The struct AutotuneLaunch from autotune_host_runtime.cpp."""

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
        ("some_blocks", ctypes.c_uint),
        ("cores", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("smem_byte", ctypes.c_uint),
        ("array_count", ctypes.c_uint),
        ("arrays", ctypes.c_void_p),
    )


def load_runtime(cxx: str, runtime: Binary | None) -> ctypes.CDLL:
    """Return this process's runtime, which is loaded on first use and never unloaded."""
    try:
        return ctypes.CDLL(RUNTIME_NAME, mode=ctypes.RTLD_GLOBAL | _RTLD_NOLOAD)
    except OSError:
        pass
    fd = os.memfd_create("autotune-runtime")
    with open(fd, "wb", closefd=False) as file:
        file.write(runtime.image if runtime else compile_runtime(cxx))
    return ctypes.CDLL(f"/proc/self/fd/{fd}", mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)


def symbol_address(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a symbol, or 0 if the library doesn't define it."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return 0


_ALIGNMENT = 16  # alignment of an array with a tensor map, bytes


class HostTensorMap(ctypes.Structure):
    """The host device's equivalent of CUtensorMap."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("global_dim", ctypes.c_int64 * 5),
        ("box_dim", ctypes.c_uint16 * 5),
        ("element_strides", ctypes.c_uint16 * 5),
        ("lower_corner", ctypes.c_int16 * 3),
        ("upper_corner", ctypes.c_int16 * 3),
        ("rank", ctypes.c_uint8),
        ("element_bytes", ctypes.c_uint8),
        ("swizzle_bytes", ctypes.c_uint8),
        ("im2col", ctypes.c_uint8),
        ("tf32", ctypes.c_uint8),
        ("spare", ctypes.c_uint8 * 43),
    )


def encode(bound: BoundTensorMap) -> bytes:
    """Encode a tensor map for the host device.

    Raises Rejected('runtime', 'launch_failure', ...) for a tensor map that a driver would reject.
    """
    tensor = bound.tensor
    refusal = tensor.refusal()
    if bound.address == 0 or bound.address % _ALIGNMENT:
        refusal = refusal or f"a tensor map takes addresses that are multiples of {_ALIGNMENT}, not {bound.address:#x}"
    if refusal:
        raise Rejected(Outcome.RUNTIME, "launch_failure", refusal)
    encoded = HostTensorMap(
        address=bound.address,
        global_dim=tensor.global_dim,
        box_dim=tensor.box_dim,
        element_strides=tensor.element_strides,
        lower_corner=tensor.lower_corner,
        upper_corner=tensor.upper_corner,
        rank=len(tensor.global_dim),
        element_bytes=ELEMENT_BYTES[tensor.dtype],
        swizzle_bytes=tensor.swizzle_bytes,
        im2col=tensor.im2col,
        tf32=tensor.dtype == "tf32",
    )
    return bytes(encoded)
