"""Declarations that no kernel can contradict: inputs without effect, constant outputs, FLOP that do not grow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from autotune.checking.check import CheckRow
from autotune.checking.problems import with_runtimes
from autotune.errors import TemplateError
from autotune.measurement.numpy_reference import in_numpy
from autotune.measurement.unread_inputs import Dependence
from autotune.operation.operation import FILE, NUMPY_REFERENCE
from autotune.operation.storage_types import TYPES
from autotune.problem import Problem
from autotune.workers.worker import DependenceRequest, Worker, WorkerLost

_MOST_PROBLEMS = 12  # problems to try before an input counts as one without effect: one column says little of softmax
_DEADLINE_S = 60.0
_NARROW = 1 << 15  # what 16 bits hold
_NEEDED = 0.01  # of a tolerance, less than which no config needs
_ROOM = 10  # times the largest error that there was, as a tolerance
_TIGHT = 1e-4  # a tolerance that is not too wide, whatever the kernels need
_LEAST = 1e-6  # that is proposed as one: errors of small problems say little


def doubtful_declarations(problems: Sequence[Problem]) -> list[str]:
    """Warnings about an operation, each naming the array or the key, as far as its problems show."""
    if not problems:
        return []
    folder = problems[0].operation.folder
    warnings = []
    if in_numpy(problems[0].operation):
        with suppress(TemplateError, WorkerLost):  # of a reference that fails, which each row reports
            found = _dependence(problems[:_MOST_PROBLEMS])
            path = folder / NUMPY_REFERENCE
            warnings += [f"warning: {path}: no output depends on {name}" for name in found.unread]
            warnings += [f"warning: {path}: {name} is the same for all inputs" for name in found.constant]
            warnings += [f"warning: {path}: {told}: their test data do not reach all cases" for told in found.unreached]
            warnings += [
                f"warning: {folder / FILE}: {name} is at most {size:.0f}: a kernel that computes in 16 bits passes; "
                "give its inputs larger `integers`, or check longer sums"
                for name, size in found.narrow.items()
                if size < _NARROW
            ]
    warnings += [f"warning: {folder / FILE}: {told}" for told in _alike(problems)]
    runtime = problems[0].operation.runtime
    grown = [(one, other) for one in problems for other in with_runtimes(one, (2 * one.runtime_size,))]
    if grown and all(one.flops == other.flops for one, other in grown):
        warnings.append(f"warning: {folder / FILE}: cost.flops does not grow with {runtime}")
    return warnings


def loose_tolerance(rows: Sequence[CheckRow]) -> list[str]:
    """A warning if correct kernels of types that are not rounded need next to nothing of the operation's tolerance."""
    unrounded = {name for name, each in TYPES.items() if each.is_float and not each.rounding}
    used = [
        row.error.over_bound
        for row in rows
        if row.error and all(output.dtype in unrounded for output in row.problem.outputs)
    ]
    if not used or (worst := max(used)) > _NEEDED:
        return []
    declared = rows[0].problem.operation
    given = declared.bounds.rtol, declared.bounds.atol
    if declared.bounds.model != "tolerance" or max(given) <= _TIGHT:
        return []
    rtol, atol = (min(each, max(_LEAST, float(f"{_ROOM * worst * each:.0e}"))) for each in given)
    return [
        f"warning: {declared.folder / FILE}: errors: the largest error is {worst:.2g} of the tolerance, so kernels "
        f"pass that are {1 / max(worst, 1e-9):.0f} times less accurate; rtol = {rtol!r} and atol = {atol!r} leave room "
        f"for {_ROOM} times that error"
    ]


def _alike(problems: Sequence[Problem]) -> list[str]:
    """Arrays whose test data are the same in every run, so that a kernel can do without them."""
    arrays = [array for problem in problems for array in problem.filled if array.fill != "data"]
    told = []
    for name in dict.fromkeys(array.name for array in arrays):
        own = [array for array in arrays if array.name == name]
        fill = own[0].fill
        only = {value for array in own for value in array.whole_bounds}
        which = "whole numbers" if fill in ("normal", "uniform") else "test data"
        if fill == "range":
            told.append(f"test data of {name} are always 0, 1, 2, ...: a kernel that does not read them passes")
        elif fill != "permutation" and len(only) == 1:
            told.append(f"{which} of {name} are always {only.pop()}: a kernel that does not read them passes")
    return told


def _dependence(problems: Sequence[Problem]) -> Dependence:
    """Run the reference in a process of its own, as every reference is."""
    worker = Worker()
    try:
        answer = worker.ask(DependenceRequest(tuple(problems)), _DEADLINE_S)
    finally:
        worker.kill()
    return cast(Dependence, answer)
