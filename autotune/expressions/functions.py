"""The functions of header expressions for the values of one config; `vectorized` has the same for many."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping

from autotune.trial import Value

WARP = 32  # lanes
BANKS = 32  # of 4 bytes each; a pass reads or writes one word of each
WORD = 4  # bytes
FARTHEST = 1 << 32  # words, more than any shared memory has
MOST = 1 << 16  # places looked at


Place = tuple[int, ...]
"""A distance in bytes, an extent, and where the last places lie if they move up."""


@functools.lru_cache(maxsize=4096)
def bank_conflicts(width: int, threads: int, *places: Place) -> int:
    """The passes that bank conflicts cost beyond those of the same accesses without any.

    A block of `threads` threads accesses `width` bytes at each of many places, as many places at a time as it has
    threads, neighbouring threads neighbouring places. Place i lies at i % extent * distance of the first of `places`,
    and i // extent goes on with the next; none lies beyond a third number, where there is one. Of more than 65,536
    places the first are taken for all. Raises ValueError for another number of numbers, an extent below 0, no threads,
    or a width that no access has.

    An access of over 4 bytes goes through sixteen (8 bytes) or eight lanes (16 bytes) at a time, at least a pass each.
    """
    import numpy as np  # the other functions of headers need none

    if width not in (1, 2, 4, 8, 16) or threads < 1:
        raise ValueError("bank_conflicts begins with 1, 2, 4, 8 or 16 bytes and with threads")
    if not places or any(len(one) not in (2, 3) or one[1] < 0 for one in places):
        raise ValueError("bank_conflicts ends with [distance, extent] or [distance, extent, last]")
    whole = math.prod(one[1] for one in places)
    place = np.arange(min(whole, MOST), dtype=np.int64)
    if not len(place):
        return 0
    at, left = np.zeros_like(place), place
    for distance, extent, *last in places:
        along = left % extent * distance
        at += np.minimum(along, last[0]) if last else along
        left = left // extent
    turns = max(1, width // WORD)  # of a warp's access, each a pass at least
    warp = place // threads * -(-threads // WARP) + place % threads // WARP
    turn = warp * turns + place % threads % WARP * turns // WARP
    words = at[:, None] // WORD + np.arange(turns)
    touched = np.unique(turn[:, None] * FARTHEST + words)
    passes = np.bincount(touched // FARTHEST * BANKS + touched % BANKS, minlength=(int(turn[-1]) + 1) * BANKS)
    further = np.maximum(passes.reshape(-1, BANKS).max(axis=1) - 1, 0)
    return int(further.sum()) * whole // len(place)


Evaluated = Value | tuple[Value, ...]

MOST_BITS = 4096
"""Of a whole number that an expression comes to; a size has 31."""


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` not below value."""
    return ceil_div(value, multiple) * multiple


def is_pow2(value: int) -> bool:
    """True for 1, 2, 4, 8, ..."""
    return value > 0 and value & (value - 1) == 0


def max_registers(warps: int) -> int:
    """The most registers of a thread where so many warps are resident on a multiprocessor.

    There are 65,536, for warps by fours and for a thread by eights, at most 255 (CUDA C++ Programming Guide, compute
    capabilities 7.5 to 12.0).
    """
    return min(255, 65536 // (32 * round_up(warps, 4)) // 8 * 8)


def product(one: Evaluated, other: Evaluated) -> int:
    """Whole numbers multiplied. Raises OverflowError for more than MOST_BITS, TypeError for anything else."""
    if not (isinstance(one, int) and isinstance(other, int)):
        raise TypeError("* is for whole numbers")
    if one.bit_length() + other.bit_length() > MOST_BITS:
        raise OverflowError(f"more than {MOST_BITS} bits")
    return one * other


def power(base: Evaluated, exponent: Evaluated) -> int:
    """A whole number to the power of another, a fraction where that is negative. Raises as `product` does."""
    if not (isinstance(base, int) and isinstance(exponent, int)):
        raise TypeError("** is for whole numbers")
    if max(base.bit_length() - 1, 1) * exponent > MOST_BITS and abs(base) > 1:
        raise OverflowError(f"more than {MOST_BITS} bits")
    raised: int = base**exponent
    return raised


FUNCTIONS: Mapping[str, Callable[..., int | bool]] = {
    "ceil_div": ceil_div,
    "round_up": round_up,
    "is_pow2": is_pow2,
    "max_registers": max_registers,
    "min": min,
    "max": max,
    "bank_conflicts": bank_conflicts,
}

ON_VALUES: Mapping[str, Callable[..., Evaluated]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": product,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": power,
    "neg": operator.neg,
    "not": operator.not_,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda value, container: value in container,
    "notin": lambda value, container: value not in container,
    **FUNCTIONS,
}
