"""Check that outputs are rounded to nearest, because most bounds would let a kernel that truncates pass."""

from __future__ import annotations

import numpy as np

from autotune.family.source import KernelSource
from autotune.measurement.storage import Doubles
from autotune.operation.declarations import Array
from autotune.operation.storage_types import TYPES

LOOKED_AT = 4096
"""maximum number of outputs to check"""
_FEWEST = 256  # minimum number of distinct inexact outputs
_EVEN = 0.25, 0.75  # allowed share of errors toward zero; eight standard deviations from 0.5
_MOST_PRODUCTS = 1 << 14  # maximum products per output; tensor cores truncate sums, and many such errors add up


def one_sided(source: KernelSource, output: Array, values: Doubles, exact: Doubles) -> str:
    """Return the direction of most of an output's rounding errors, or "" if they go both ways.

    `values` are the numbers stored by the kernel, `exact` the reference's numbers.
    """
    bounds = source.problem.operation.bounds.of(output)
    if bounds.model != "multilinear" or source.problem.reduction > _MOST_PRODUCTS:
        return ""
    if source.accuracy == "fp16-acc16" or source.error_factor > 1:
        return ""
    rounded = abs(exact) < TYPES[output.dtype].whole[1]
    _, distinct = np.unique(np.where(rounded, exact, 0.0), return_index=True)  # equal values round in the same way
    errors = abs(values[distinct]) - abs(exact[distinct])
    errors = errors[errors != 0.0]
    if errors.size < _FEWEST or _EVEN[0] <= (toward_zero := float(np.mean(errors < 0.0))) <= _EVEN[1]:
        return ""
    return "toward zero" if toward_zero > _EVEN[1] else "away from zero"
