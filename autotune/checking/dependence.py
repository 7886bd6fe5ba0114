"""Declarations that no kernel can contradict: inputs without effect, constant outputs, FLOP that do not grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from autotune.checking.problems import with_runtimes
from autotune.errors import TemplateError
from autotune.measurement.numpy_reference import Doubles, in_numpy, numpy_reference
from autotune.operation.declarations import DRAWN, FLOATS, Array
from autotune.operation.operation import FILE, NUMPY_REFERENCE
from autotune.problem import Problem

_MOST_PROBLEMS = 12  # problems to try before an input counts as one without effect: one column says little of softmax


def doubtful_declarations(problems: Sequence[Problem]) -> list[str]:
    """Warnings about an operation, each naming the array or the key, as far as its problems show."""
    if not problems:
        return []
    folder = problems[0].operation.folder
    warnings = []
    if in_numpy(problems[0].operation):
        with suppress(TemplateError):  # of a reference that fails, which each row reports
            unread, constant = _without_effect(problems[:_MOST_PROBLEMS])
            path = folder / NUMPY_REFERENCE
            warnings += [f"warning: {path}: no output depends on {name}" for name in unread]
            warnings += [f"warning: {path}: {name} is the same for all inputs" for name in constant]
    runtime = problems[0].operation.runtime
    grown = [(one, other) for one in problems for other in with_runtimes(one, (2 * one.runtime_size,))]
    if grown and all(one.flops == other.flops for one, other in grown):
        warnings.append(f"warning: {folder / FILE}: cost.flops does not grow with {runtime}")
    return warnings


def _without_effect(problems: Sequence[Problem]) -> tuple[list[str], list[str]]:
    """Drawn inputs on which no output depends, and outputs that depend on no drawn input."""
    inputs = dict.fromkeys(array.name for problem in problems for array in problem.filled if array.fill in DRAWN)
    outputs = dict.fromkeys(output.name for problem in problems for output in problem.outputs)
    read: set[str] = set()
    changing: set[str] = set()
    for problem in problems:
        if read >= inputs.keys() and changing >= outputs.keys():
            break
        for changed, output in _effects(problem):
            read.add(changed)
            changing.add(output)
    return [name for name in inputs if name not in read], [name for name in outputs if inputs and name not in changing]


def _effects(problem: Problem) -> Iterator[tuple[str, str]]:
    """Each input with an output that changes as the input is drawn anew."""
    data = {array.name: _drawn(array, 0) for array in problem.filled}
    before = numpy_reference(problem, data)
    for array in problem.filled:
        if array.fill not in DRAWN:
            continue
        after = numpy_reference(problem, {**data, array.name: _drawn(array, 1)})
        for one, other in zip(before, after, strict=True):
            if not np.array_equal(one.value, other.value):
                yield array.name, one.output.name


def _drawn(array: Array, seed: int) -> Doubles:
    """An array's test data, flat; those that are not drawn are the same for every seed."""
    random = np.random.default_rng((seed, *map(ord, array.name)))
    if array.fill in DRAWN and array.dtype in FLOATS and array.fill != "integers":
        if array.fill == "uniform":
            return random.uniform(array.low, array.high, array.elements)
        return random.standard_normal(array.elements)
    if array.fill in ("range", "permutation"):
        length, step, shift = array.steps
        at = np.arange(array.elements)
        return ((at % length * step + at // length % length * shift) % length).astype(np.float64)
    least, most = array.whole_bounds
    return random.integers(least, most, array.elements, endpoint=True).astype(np.float64)
