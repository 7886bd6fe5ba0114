"""Find the inputs of an operation with a NumPy reference that change no output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measurement.numpy_reference import Doubles, numpy_reference
from autotune.operation.declarations import DRAWN, Array
from autotune.operation.storage_types import FLOATS
from autotune.problem import Problem


@dataclass(frozen=True, slots=True)
class Dependence:
    """Inputs on which no output depends, and outputs that no input changes, by name."""

    unread: tuple[str, ...]
    constant: tuple[str, ...]


def dependence(problems: Sequence[Problem]) -> Dependence:
    """Draw each input again on these problems, and compare the reference's outputs.

    Raises TemplateError if the reference fails.
    """
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
    return Dependence(
        tuple(name for name in inputs if name not in read),
        tuple(name for name in outputs if inputs and name not in changing),
    )


def _effects(problem: Problem) -> Iterator[tuple[str, str]]:
    """Each input, with an output that changes when the input is drawn again."""
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
    """An array's test data, flat. Data that are not random are the same for every seed."""
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
