"""What expressions of a header do to the values of one config; `columns` has the same for many."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from autotune.expressions.banks import bank_conflicts
from autotune.trial import Value

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
