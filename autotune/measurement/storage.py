"""Round numbers to a storage type, and convert them to bytes and back."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from autotune.operation.storage_types import TYPES

Numbers = npt.NDArray[np.floating | np.integer]
Doubles = npt.NDArray[np.float64]
_SIGN = 0x80  # sign bit of an 8-bit float


def stored(values: Numbers, dtype: str) -> Doubles:
    """Return the values rounded to a storage type, to nearest even."""
    return decoded(encoded(values, dtype), dtype).reshape(values.shape)


def encoded(values: Numbers, dtype: str) -> bytes:
    """Return values as bytes in a storage type."""
    if TYPES[dtype].numpy:
        return values.astype(TYPES[dtype].numpy).tobytes()
    if dtype == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    sizes = _magnitudes(dtype)
    between = (sizes[:-1] + sizes[1:]) / 2
    magnitudes = abs(values.astype(np.float64))
    codes = np.searchsorted(between, magnitudes)
    ties = magnitudes == between[np.minimum(codes, len(between) - 1)]
    codes += ties & (codes % 2 == 1)
    content: bytes = (codes + _SIGN * np.signbit(values)).astype(np.uint8).tobytes()
    return content


def decoded(content: bytes, dtype: str) -> Doubles:
    """Return stored elements as doubles."""
    if TYPES[dtype].numpy:
        return np.frombuffer(content, TYPES[dtype].numpy).astype(np.float64)
    if dtype == "bf16":
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    sizes = _magnitudes(dtype)
    every = np.concatenate([sizes, np.full(_SIGN - len(sizes), np.nan)])
    values: Doubles = np.concatenate([every, -every])[np.frombuffer(content, np.uint8)]
    return values


@cache
def _magnitudes(dtype: str) -> Doubles:
    """Return all non-negative finite numbers that an 8-bit float can store, in the order of their codes."""
    kind = TYPES[dtype]
    codes = np.arange(_SIGN)
    exponents, fractions = codes >> kind.fraction_bits, codes % (1 << kind.fraction_bits)
    whole = np.where(exponents > 0, 1 << kind.fraction_bits, 0) + fractions
    sizes = np.ldexp(whole.astype(np.float64), np.maximum(exponents - 1, 0) + kind.least_exponent - kind.fraction_bits)
    finite: Doubles = sizes[sizes <= kind.whole[1]]
    return finite
