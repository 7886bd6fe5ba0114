"""Query the NVIDIA driver's version and GPUs, without PyCUDA and without a context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class DriverHere:
    """The driver of this machine."""

    cuda: str
    """the newest CUDA version that it runs, such as 13.0"""
    devices: tuple[str, ...]
    """names of the GPUs, in CUDA's order; empty if there are none or the driver does not start"""


def driver_here() -> DriverHere | None:
    """The driver of this machine; None without libcuda.so.1."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return DriverHere(cuda, ())
    name = ctypes.create_string_buffer(_NAME_BYTES)
    names = []
    for device in range(count.value):
        driver.cuDeviceGetName(name, _NAME_BYTES, device)
        names.append(name.value.decode(errors="replace"))
    return DriverHere(cuda, tuple(names))
