"""The error bounds of the accuracy classes: the maximum deviations of outputs from the reference.

Outputs must also be rounded to nearest, because most bounds would let a kernel that truncates pass.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autotune.errors import TemplateError
from autotune.family.source import KernelSource
from autotune.measurement.storage import Doubles
from autotune.operation.declarations import Array
from autotune.operation.operation import FILE
from autotune.operation.storage_types import TYPES
from autotune.problem import Problem

ABSURD = 1000.0  # maximum of sum(|terms|) / (|output| sqrt(L)), which is about 1 for L terms with random signs
LOOSE = 0.5  # maximum error divided by output; at 1, zeros would pass, and wrong kernels have errors of about that size
_LEAST_OUTPUTS = 16  # minimum number of nonzero outputs to check; fewer outputs may all be near 0 by chance
ROUNDED_OUTPUTS = 4096  # maximum number of outputs whose rounding is checked
_FEWEST_ROUNDED = 256  # minimum number of distinct inexact outputs
_BOTH_WAYS = 0.25, 0.75  # allowed share of errors toward zero; eight standard deviations from 0.5
_MOST_PRODUCTS = 1 << 14  # maximum products per output; tensor cores truncate sums, and many such errors add up


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """|y - ref| <= c(L) (S + least_term L) + rounding |ref| for an output of L products whose magnitudes sum to S.

    c(L) = min(most, constant + growing sqrt(L) + shrinking / sqrt(L)). docs/templates.md derives the numbers.
    """

    constant: float = 0.0
    growing: float = 0.0
    shrinking: float = 0.0
    most: float = 1.0
    least_term: float = 0.0

    def factor(self, products: float) -> float:
        """Return c(L) for an output of L `products`."""
        root = math.sqrt(max(1.0, products))
        return min(self.most, self.constant + self.growing * root + self.shrinking / root)

    def of(self, unit: float, products: float) -> float:
        """Return the error bound of an output, without the rounding of the stored type."""
        return self.factor(products) * (unit + self.least_term * products)

    def times(self, factor: int) -> ErrorBound:
        """Return the bound multiplied by a factor, such as the `error_factor` in a family's header."""
        constant, growing, shrinking, most, least_term = self.numbers
        return ErrorBound(constant * factor, growing * factor, shrinking * factor, most * factor, least_term)

    @property
    def numbers(self) -> tuple[float, float, float, float, float]:
        """The fields in the order of ErrorBound in C++."""
        return self.constant, self.growing, self.shrinking, self.most, self.least_term


_F64, _F32, _F16, _BF16 = 2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8  # unit roundoff
_HALF_TERM = 2.0**-12  # an input below 2^-14 is rounded to a multiple of 2^-24; the other factor is below 8
_CLASSES = {
    "fp64": ErrorBound(constant=8 * _F64, growing=2 * _F64),  # the reference has an error of the same size
    "fp32": ErrorBound(constant=4 * _F32, growing=_F32),
    "fp32-3xtf32": ErrorBound(constant=24 * _F32, growing=_F32),  # tensor cores cut off 27 sums in a row
    "tf32": ErrorBound(shrinking=16 * _F16, most=2 * _F16),
    "fp16": ErrorBound(shrinking=16 * _F16, most=2 * _F16),
    "bf16": ErrorBound(shrinking=8 * _BF16, most=_BF16),
    "fp16-acc16": ErrorBound(constant=4 * _F16, growing=_F16, least_term=_HALF_TERM),
}


def error_bound(accuracy: str, problem: Problem) -> ErrorBound:
    """Return an accuracy class's error bound.

    If the outputs aren't sums of products, this is the operation's own tolerance.
    """
    if problem.operation.bounds.model != "multilinear":
        return ErrorBound(constant=1.0)
    bound = _CLASSES[accuracy]
    if problem.dtype == "f32" and accuracy == "fp16":  # the kernel rounds its inputs
        return replace(bound, least_term=_HALF_TERM)
    return bound.times(2) if problem.dtype == "f32" and accuracy == "bf16" else bound


def too_loose(source: KernelSource) -> str:
    """Return an error message if an `error_factor` would let wrong kernels pass, or ""."""
    factor, allowed = source.error_factor, allowed_error(source)
    if factor == 1 or allowed <= LOOSE:
        return ""
    return (
        f"error_factor = {factor} allows errors of {allowed:.3g} times an output of {source.problem}; "
        f"expected at most {LOOSE}"
    )


def allowed_error(source: KernelSource) -> float:
    """Return the largest error that a kernel may have, relative to a typical output.

    If L terms have random signs, their magnitudes add up to about sqrt(L) times the output.
    """
    problem = source.problem
    bounds = problem.operation.bounds
    if bounds.model == "exact":
        return 0.0
    rtol = max(bounds.of(output).rtol for output in problem.outputs)
    class_bound = error_bound(source.accuracy, problem).factor(problem.reduction) * math.sqrt(problem.reduction)
    return source.error_factor * (rtol if bounds.model == "tolerance" else class_bound)


def exact_on_integers(accuracy: str, problem: Problem) -> bool:
    """Return whether outputs on integer data must be exact.

    This is the case for exact operations and for sums of products, unless the sums are long and accumulated in half
    precision.
    """
    if problem.operation.bounds.model != "multilinear":
        return problem.operation.bounds.model == "exact"
    return accuracy != "fp16-acc16" or 2 * problem.reduction + 2 <= 2048


def most_error_on_integers(source: KernelSource) -> float:
    """Return the largest error that an output may have on integer data, before rounding to its stored type.

    The error doesn't depend on the accuracy class's bound, and is 0 if sums are exact. A family with an `error_factor`,
    such as Winograd, computes with fractions, but its sums still round to the right integer.
    """
    if not exact_on_integers(source.accuracy, source.problem):
        return sys.float_info.max
    exact = source.error_factor == 1 or source.problem.operation.bounds.model == "exact"
    return 0.0 if exact else 0.25


def check_units(problem: Problem, name: str, values: Doubles, units: npt.NDArray[np.float32]) -> None:
    """Raise TemplateError if an output's error units are so large that wrong kernels would pass.

    `values` and `units` come from normal data. A sum's unit is the sum of its terms' magnitudes.
    """
    if np.count_nonzero(values) < _LEAST_OUTPUTS:
        return
    declared = problem.operation
    typical = math.sqrt(float(np.mean(values * values)))
    times = math.sqrt(float(np.mean(np.square(units, dtype=np.float64)))) / typical
    bounds = declared.bounds.of(problem.array(name))
    if bounds.model == "tolerance" and times > LOOSE:
        raise TemplateError(
            f"{declared.folder / FILE}: errors: rtol = {bounds.rtol!r} and atol = {bounds.atol!r} "
            f"allow errors of {times:.3g} times the outputs {name} of {problem}, whose size is {typical:.3g}; "
            f"above {LOOSE} wrong kernels would pass"
        )
    most = ABSURD * math.sqrt(problem.reduction)
    if declared.bounds.model == "multilinear" and times > most:
        raise TemplateError(
            f"{declared.folder / declared.references[0][0]}: reference on {problem}: magnitudes of {name} are "
            f"{times:.3g} times its values; above {most:.3g} ({ABSURD:.0f} sqrt(reduction)) wrong kernels would pass: "
            "expected sums of the terms' absolute values, or test data whose terms cancel less"
        )


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
    if errors.size < _FEWEST_ROUNDED or _BOTH_WAYS[0] <= (toward_zero := float(np.mean(errors < 0.0))) <= _BOTH_WAYS[1]:
        return ""
    return "toward zero" if toward_zero > _BOTH_WAYS[1] else "away from zero"
