"""Warn about declarations that hide a kernel's errors.

They have inputs without effect, constant outputs, FLOPs that don't grow, or bounds far wider than the errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import cast

from autotune.checking.check import CheckRow
from autotune.checking.other_sizes import axes
from autotune.errors import TemplateError
from autotune.family.template import KernelTemplate
from autotune.measurement.bounds import allowed_error
from autotune.measurement.numpy_reference import in_numpy
from autotune.operation.declarations import SCALAR
from autotune.operation.operation import FILE
from autotune.operation.storage_types import FLOATS, TYPES
from autotune.problem import Problem, make_problem, valid_problems
from autotune.workers.worker import DependenceRequest, Worker, WorkerLost

_MOST_PROBLEMS = 12  # problems to try before an input counts as unused; softmax of one column ignores the input
_DEADLINE_S = 60.0
_FEW = 126, 255  # ranges of test data that are too narrow for bytes, and for wider integers (they would fit in bytes)
_PRODUCTS = 16  # maximum products per FLOP of an output; a transposed convolution's strides skip some of the products
_LEAST_PRODUCTS, _FLOPS = 4, 1.25  # outputs with so few products, or more FLOPs for each of them, are right
_INDICES = ("i32", "i64")  # types of numbers that are rarely multiplied
_NEEDED = 0.01  # a tolerance is too wide if no error exceeds this fraction of it
_ROOM = 10  # proposed tolerance, as a multiple of the largest observed error
_TIGHT = 1e-4  # a tolerance up to this value never counts as too wide
_TIMES = 2, 8  # factors on a size; with the second, an axis with a stride gets more outputs
_SLOW = 0.1  # FLOPs ignore a size if they grow with it by less than this share of the arrays' growth
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LEAST = 1e-5  # smallest tolerance to propose, because small problems have small errors


def doubtful_declarations(problems: Sequence[Problem]) -> list[str]:
    """Return warnings about an operation's declaration, based on trying some problems.

    Each warning mentions the array or the key.
    """
    if not problems:
        return []
    declared = problems[0].operation
    folder = declared.folder
    warnings: list[str] = []
    if in_numpy(declared):
        with suppress(TemplateError, WorkerLost):  # if the reference fails, each row of the check reports the error
            warnings += _of_reference(problems[:_MOST_PROBLEMS])
    warnings += [f"warning: {folder / FILE}: {told}" for told in _alike(problems)]
    for size in dict.fromkeys((*declared.runtime, *(axis for problem in problems for axis in axes(problem)))):
        if (shares := list(_growth(problems, size))) and median(shares) < _SLOW:
            warnings.append(f"warning: {folder / FILE}: cost.flops does not grow with {size}")
    return [*warnings, *_flops_of_products(problems)]


def _growth(problems: Sequence[Problem], size: str) -> Iterator[float]:
    """Yield the growth of each problem's FLOPs with a size, as a share of the growth of its arrays.

    If an array has indices, only outputs count, and any growth is enough: most elements of a lookup table may not be
    read, and most FLOPs may belong to the elements that indices select.
    """
    for one in problems:
        looked_up = any(array.dtype not in FLOATS for array in one.filled)
        larger = (partial(make_problem, one.operation, {**one.values, size: n * int(one.values[size])}) for n in _TIMES)
        shares = []
        for other in valid_problems(larger):
            before, after = (
                sum(array.elements for array in (each.outputs if looked_up else each.arrays)) for each in (one, other)
            )
            if after > before and other.flops >= one.flops:  # a large filter may leave fewer outputs
                more = other.flops / max(1, one.flops) - 1
                shares.append(float(more > 0) if looked_up else more / (after / before - 1))
        if shares:
            yield max(shares)


def _flops_of_products(problems: Sequence[Problem]) -> list[str]:
    """Return warnings if the FLOPs of an output don't fit its products.

    With far more products than FLOPs, the error bound is too wide. A product takes a multiplication and an addition,
    unless the operation adds the elements of a single array.
    """
    declared = problems[0].operation
    if declared.bounds.model != "multilinear":
        return []
    warnings = []
    file = declared.folder / FILE
    times, worst = max(((_products_per_flop(each), each) for each in problems), key=lambda pair: pair[0])
    if times > _PRODUCTS:
        warnings.append(
            f"warning: {file}: cost.reduction is {worst.reduction} of {worst}, {times:.0f} times "
            "as many products as cost.flops has FLOPs for an output; a larger reduction allows larger errors"
        )
    sums = [each for each in problems if each.reduction >= _LEAST_PRODUCTS and _has_products(each)]
    most = max(sums, key=_flops_per_product, default=None)
    if most is not None and _flops_per_product(most) <= _FLOPS:
        warnings.append(
            f"warning: {file}: cost.flops is {_flops_per_product(most):.2g} for each of the {most.reduction} products "
            "(cost.reduction) of an output, or less for other sizes; a multiplication and an addition are 2 FLOPs"
        )
    return warnings


def _products_per_flop(problem: Problem) -> float:
    return problem.reduction * sum(output.elements for output in problem.outputs) / max(1, problem.flops)


def _flops_per_product(problem: Problem) -> float:
    """Return the FLOPs for each product of the largest output, as if the others had none."""
    return problem.flops / (problem.reduction * max(output.elements for output in problem.outputs))


def _has_products(problem: Problem) -> bool:
    """Return whether two inputs other than indices have an element for each product."""
    numbers = [array for array in problem.filled if array.dtype not in _INDICES]
    return sum(array.elements >= problem.reduction for array in numbers) > 1


def lone_scratch(family: KernelTemplate) -> list[str]:
    """Return warnings about scratch memory that a single stage takes, so that it may contain a result.

    A stage that uses atomic functions may have counters there. Results of such functions need an earlier stage, which
    clears them.
    """
    if "atomic" in _COMMENT.sub("", family.text):
        return []
    stages = (*family.prepare, *family.stages)
    return [
        f"warning: {family.path}: only one stage takes the scratch array {array.name}, whose contents are never "
        'checked: if it is a result, give it role = "out"'
        for array in family.operation.arrays
        if array.role == "scratch" and sum(array.name in stage.args for stage in stages) == 1
    ]


def loose_tolerance(rows: Sequence[CheckRow]) -> list[str]:
    """Return warnings about tolerances far above the errors of correct kernels, and about a wide `error_factor`."""
    if not rows:
        return []
    declared, source = rows[0].problem.operation, max((row.source for row in rows), key=lambda each: each.error_factor)
    warnings = []
    if source.error_factor > 1:
        warnings.append(
            f"warning: {source.config.template}: error_factor = {source.error_factor}: kernels whose outputs are "
            f"wrong by {100 * allowed_error(source):.2g} % pass"
        )
    for output in rows[0].problem.outputs if declared.bounds.model == "tolerance" else ():
        parts = (row.error.of_tolerance.get(output.name) for row in rows if row.error)
        used = [part for part in parts if part is not None]
        bounds = declared.bounds.of(output)
        given = bounds.rtol, bounds.atol
        if not used or (worst := max(used)) > _NEEDED or max(given) <= _TIGHT:
            continue
        rtol, atol = (min(each, max(_LEAST, float(f"{_ROOM * worst * each:.0e}"))) for each in given)
        warnings.append(
            f"warning: {declared.folder / FILE}: errors: the largest error of {output.name} is {worst:.2g} of its "
            f"tolerance, so kernels that are {1 / max(worst, _LEAST):.0f} times less accurate pass; rtol = {rtol!r} "
            f"and atol = {atol!r} leave room for {_ROOM} times that error"
        )
    return warnings


def _alike(problems: Sequence[Problem]) -> list[str]:
    """Return warnings about arrays whose test data are the same in every run, so that a kernel doesn't have to read
    them.
    """
    arrays = [array for problem in problems for array in problem.filled if array.fill != "data"]
    told = []
    for name in dict.fromkeys(array.name for array in arrays):
        own = [array for array in arrays if array.name == name]
        fill, kind = own[0].fill, TYPES[own[0].dtype]
        few = -1 if kind.is_float else _FEW[kind.size_bytes > 1]
        signed = own[0].dtype == "i8"  # wider integers may be indices, which have no sign
        only = {value for array in own for value in array.whole_bounds}
        which = "whole numbers" if fill in ("normal", "uniform") else "test data"
        least, most = (choose(array.whole_bounds[place] for array in own) for place, choose in enumerate((min, max)))
        if fill == "range":
            told.append(f"test data of {name} are always 0, 1, 2, ...: a kernel that does not read them passes")
        elif fill != "permutation" and len(only) == 1:
            told.append(f"{which} of {name} are always {only.pop()}: a kernel that does not read them passes")
        elif fill == "integers" and own[0].role != SCALAR and (most - least <= few or (signed and least >= 0)):
            told.append(
                f"{which} of {name} are {least} to {most}: a kernel that is wrong for other numbers of "
                f"{own[0].dtype} passes; if such numbers occur, give it larger `integers`"
            )
    return told


def _of_reference(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return warnings that need the reference, which runs in its own process."""
    worker = Worker()
    try:
        return cast(tuple[str, ...], worker.ask(DependenceRequest(tuple(problems)), _DEADLINE_S))
    finally:
        worker.kill()
