"""The driver's functions, through ctypes in the current context, for features that PyCUDA lacks.

PyCUDA compiles, loads, and owns context and streams. Graphs (`graphs`), and tensor maps with the kernels that take them
(`driver_launch`), use this module. `cuda-bindings` cannot replace it, because it does not align the tensor maps that it
encodes (docs/architecture.md).
"""

from __future__ import annotations

import ctypes
from functools import cache


class DriverError(Exception):
    """A failed call of the driver, with the driver's message."""


def call(name: str, *arguments: object) -> None:
    """Call a function of the driver. Raises DriverError."""
    status = getattr(_driver(), name)(*arguments)
    if status:
        message = ctypes.c_char_p()
        _driver().cuGetErrorString(ctypes.c_int(status), ctypes.byref(message))
        raise DriverError(f"{name} failed: {(message.value or b'').decode() or f'error {status}'}")


@cache
def _driver() -> ctypes.CDLL:
    """The driver's library, which PyCUDA has loaded already."""
    return ctypes.CDLL("libcuda.so.1")
