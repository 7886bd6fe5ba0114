"""The error bounds of accuracy classes: how much outputs may differ from the reference."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from autotune.errors import TemplateError
from autotune.operation.operation import FILE
from autotune.problem import Problem

ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8, "i32": 0.0}  # unit roundoff of the stored output

ABSURD = 1000.0  # times sqrt(L) for outputs: the magnitude of L terms with random signs is about sqrt(L)
LOOSE = 0.5  # of the outputs; zeros would pass with a tolerance of 1, and the error of wrong kernels is about as large
_LEAST_OUTPUTS = 16  # nonzero outputs needed; fewer may all be near 0 by chance


def error_factor(accuracy: str, reduction: int) -> float:
    """The factor c of the bound |y - ref| <= c * S + rounding * |ref| for one accuracy class.

    `reduction` is L, the products summed into one output; S = conv(|x|, |w|). The statistical bounds grow with
    sqrt(L) instead of L (Higham 2002, 2.8 and 3.1).
    """
    root = math.sqrt(reduction)
    match accuracy:
        case "fp32":
            return (4 + root) * 2.0**-24
        case "fp32-3xtf32":
            return (8 + root) * 2.0**-24
        case "tf32" | "fp16":
            return 2.0**-10 * min(1.0, 8 / root)
        case "bf16":
            return 2.0**-8 * min(1.0, 8 / root)
        case "fp16-acc16":
            return (4 + root) * 2.0**-11
    raise ValueError(f"accuracy class {accuracy!r} has no bound")


def bound_factor(accuracy: str, problem: Problem) -> float:
    """The factor that turns the error unit of an output into its bound, for one accuracy class."""
    return error_factor(accuracy, problem.reduction) if problem.operation.bounds.model == "multilinear" else 1.0


def too_loose(factor: int, accuracy: str, problem: Problem) -> str:
    """What is wrong with a header's `error_factor` that lets wrong kernels pass; empty if it does not.

    The magnitudes of L terms of random signs are some sqrt(L) times the output.
    """
    bounds = problem.operation.bounds
    class_bound = bound_factor(accuracy, problem) * math.sqrt(problem.reduction)
    allowed = factor * (bounds.rtol if bounds.model == "tolerance" else class_bound)
    if factor == 1 or bounds.model == "exact" or allowed <= LOOSE:
        return ""
    return (
        f"error_factor = {factor} allows errors of {allowed:.3g} times an output of {problem}; expected {LOOSE} at most"
    )


def exact_on_integers(accuracy: str, problem: Problem) -> bool:
    """Whether integer data must give the exact result: always for sums, except for half accumulation of long ones."""
    if problem.operation.bounds.model != "multilinear":
        return problem.operation.bounds.model == "exact"
    return accuracy != "fp16-acc16" or 2 * problem.reduction + 2 <= 2048


def check_units(problem: Problem, name: str, values: npt.NDArray[np.float64], units: npt.NDArray[np.float32]) -> None:
    """Raise TemplateError if an output's error unit is so large that wrong kernels would pass.

    `values` and `units` are of normal data; the units of sums are the magnitudes of their terms.
    """
    if np.count_nonzero(values) < _LEAST_OUTPUTS:
        return
    declared = problem.operation
    typical = math.sqrt(float(np.mean(values * values)))
    times = math.sqrt(float(np.mean(np.square(units, dtype=np.float64)))) / typical
    if declared.bounds.model == "tolerance" and times > LOOSE:
        raise TemplateError(
            f"{declared.folder / FILE}: errors: rtol = {declared.bounds.rtol!r} and atol = {declared.bounds.atol!r} "
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
