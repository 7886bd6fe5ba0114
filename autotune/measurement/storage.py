"""Storage types: rounding numbers to one, and converting them to bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def stored(values: npt.NDArray[np.floating | np.integer], dtype: str) -> npt.NDArray[np.float32]:
    """The values rounded to a storage type, to nearest even."""
    exact = values.astype(np.float32)
    if dtype == "f16":
        return exact.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = exact.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return exact


def encoded(values: npt.NDArray[np.floating | np.integer], dtype: str) -> bytes:
    """The values' bytes in a storage type; f64 for the reference."""
    exact = {"f64": np.float64, "i32": np.int32}
    if dtype in exact:
        return values.astype(exact[dtype]).tobytes()
    if dtype == "bf16":
        return (stored(values, dtype).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float32 if dtype == "f32" else np.float16).tobytes()
