"""Run an operation's NumPy reference to find doubtful declarations.

These are inputs that don't change any output, outputs that don't depend on the test data, and tolerances that are
large compared to the outputs.
"""

from __future__ import annotations

import itertools
import linecache
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from autotune.errors import TemplateError
from autotune.measurement.numpy_reference import Doubles, given_data, numpy_reference
from autotune.measurement.test_data import edged
from autotune.operation.declarations import DRAWN, Array
from autotune.operation.operation import DATA, FILE, NUMPY_REFERENCE
from autotune.operation.storage_types import FLOATS, TYPES
from autotune.problem import Problem, make_problem, valid_problems

ALLOWED = 2.0**-8
"""The largest error that a tolerance should allow, relative to an output: the rounding of bf16."""
_NARROW = 1 << 15  # smaller numbers fit into 16 bits
_TIMES, _MORE = 8, 1.5  # factor on a size, and by how much the outputs must grow with it
_MOST_READ = 1 << 20  # maximum number of an array's elements in such a larger problem
_LEAST_EXTENT = 2  # minimum extent of an axis for changing only its last position
_RUNS = 16  # maximum number of runs of the reference that watch its comparisons
_DRAWS = 8  # number of draws of all inputs after which an unchanged output element counts as independent of them
_OFFSET = 100.0  # added to numbers with a spread of about 1
_HARDLY = 1e-3  # maximum change by the offset, relative to the change by other data, for an output without the mean
_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_MOST_ELEMENTS = 1 << 16  # maximum number of an output's elements to compare


class _Watched(np.ndarray[Any, np.dtype[Any]]):
    """Numbers that note the results of comparisons with them, by file and line."""

    results: ClassVar[dict[tuple[str, int], set[bool]]] = {}

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        plain = (np.asarray(each) if isinstance(each, _Watched) else each for each in inputs)
        if "out" in options:  # of += and mean
            options["out"] = tuple(np.asarray(each) if isinstance(each, _Watched) else each for each in options["out"])
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc in _COMPARISONS:
            caller = sys._getframe(1)
            found = _Watched.results.setdefault((caller.f_code.co_filename, caller.f_lineno), set())
            found.update(np.unique(result).tolist())
        return result.view(_Watched) if isinstance(result, np.ndarray) else result


def doubtful_data(problems: Sequence[Problem]) -> list[str]:
    """Return warnings about inputs that the reference ignores and test data that would hide errors.

    Raises TemplateError if the reference fails.
    """
    inputs = dict.fromkeys(array.name for problem in problems for array in problem.filled if array.fill in DRAWN)
    outputs = dict.fromkeys(output.name for problem in problems for output in problem.outputs)
    read: set[str] = set()
    changing: set[str] = set()
    for problem in problems:
        if read >= inputs.keys() and changing >= outputs.keys():
            break
        for changed, output_name in _effects(problem):
            read.add(changed)
            changing.add(output_name)
    declared = problems[0].operation
    reference, file = (f"warning: {declared.folder / name}" for name in (NUMPY_REFERENCE, FILE))
    warnings = [f"{reference}: no output depends on {name}" for name in inputs if name not in read]
    if inputs:
        warnings += [f"{reference}: {name} is the same for all inputs" for name in outputs if name not in changing]
    warnings += [
        f"{reference}: no output depends on the end of {name} along {axis}" for name, axis in _unread_ends(problems)
    ]
    if not declared.bounds.nan_propagates and any(map(_spreads_nan, problems)):
        warnings.append(f'{file}: errors: kernels that lose a NaN pass; if they must not, declare nan = "propagates"')
    warnings += [
        f"{file}: {name} hardly changes if {_OFFSET:g} is added to {array}, and no test data are that far from zero: "
        f'kernels that lose digits there pass; give {array} fill = "uniform" and between = [120, 128]'
        for array, name in dict.fromkeys(itertools.chain.from_iterable(map(_unshifted, problems)))
    ]
    warnings += [
        f"{reference}: {line}: always has the same result; the test data lack a case" for line in _one_sided(problems)
    ]
    for problem, output, unreached, size in _reach(problems):
        if unreached and output.name in changing:
            warnings.append(f"{reference}: {unreached}: the test data do not reach all cases")
        if _is_wide(output) and size < _NARROW and _grows(problem, output.name, size):
            warnings.append(
                f"{file}: {output.name} is at most {size:.0f}: a kernel that computes in 16 bits passes; "
                "give its inputs larger `integers`, or check.toml larger problems"
            )
    warnings += [
        f"warning: {declared.folder / DATA}: {name} is the same in every run: a kernel that does not read it passes"
        for name in _alike(problems)
    ]
    allowed = _allowed(problems) if declared.bounds.model == "tolerance" else {}
    warnings += [
        f"{file}: errors: kernels whose {name} is wrong by {100 * error:.2g} % pass"
        for name, error in allowed.items()
        if error > ALLOWED
    ]
    return warnings


def _is_wide(output: Array) -> bool:
    """Return whether an output consists of integers with more than 16 bits."""
    return output.dtype not in FLOATS and TYPES[output.dtype].size_bytes > 2


def _alike(problems: Sequence[Problem]) -> tuple[str, ...]:
    pairs = [(given_data(problem, 0), given_data(problem, 1)) for problem in problems]
    return tuple(
        name
        for name in dict.fromkeys(name for one, _ in pairs for name in one)
        if all(np.array_equal(one[name], other[name]) for one, other in pairs if name in one)
    )


def _allowed(problems: Sequence[Problem]) -> dict[str, float]:
    """Return the ratio of each output's tolerance to its magnitude, for the problem where it is smallest.

    Tolerance and magnitude are root mean squares over the elements.
    """
    found: dict[str, float] = {}
    for problem in problems:
        for each in numpy_reference(problem, _draw(problem, 0)):
            values, units = (float(np.sqrt(np.mean(np.square(part)))) for part in (each.value, each.unit))
            allowed = units / values if values > 0 else math.inf
            found[each.output.name] = min(allowed, found.get(each.output.name, math.inf))
    return found


def _grows(problem: Problem, name: str, size: float) -> bool:
    """Return whether an output exceeds its largest magnitude on a larger problem.

    Some outputs never do, such as counts in groups of 32 elements.
    """
    sizes = ((each.name, _TIMES * int(problem.values[each.name])) for each in problem.operation.sizes)
    larger = valid_problems(partial(make_problem, problem.operation, {**problem.values, own: n}) for own, n in sizes)
    small = [each for each in larger if all(array.elements <= _MOST_READ for array in each.arrays)]
    found = (each for one in small for each in numpy_reference(one, _draw(one, 0)) if each.output.name == name)
    return not small or any(float(abs(each.value).max()) > _MORE * size for each in found)


def _reach(problems: Sequence[Problem]) -> list[tuple[Problem, Array, str, float]]:
    """Return, for each output, a text about elements that are equal for all inputs, and the largest magnitude.

    The outputs are from the problem with the most FLOPs among those with integer arrays, because in small problems the
    data may miss elements by chance.
    """
    found = [
        problem
        for problem in problems
        if any(array.dtype not in FLOATS for array in problem.arrays)
        and all(output.elements <= _MOST_ELEMENTS for output in problem.outputs)
    ]
    if not found:
        return []
    problem = max(found, key=lambda each: each.flops)
    reached = []
    draws = (numpy_reference(problem, _draw(problem, seed)) for seed in range(_DRAWS))
    for first, *others in zip(*draws, strict=True):
        same, told = np.all([first.value == other.value for other in others], axis=0), ""
        if 0 < same.sum() < same.size:
            place = np.unravel_index(int(np.argmax(same)), first.output.shape)
            where = ", ".join(f"{axis} = {at}" for axis, at in zip(first.output.axes, place, strict=True))
            name = first.output.name
            told = f"{same.sum()} of {same.size} elements of {name} are the same for all inputs, the first at {where}"
        reached.append((problem, first.output, told, max(float(abs(each.value).max()) for each in (first, *others))))
    return reached


def _effects(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield each pair of an input and an output that changes when the input is redrawn."""
    data, others = _draw(problem, 0), _draw(problem, 1)
    before = numpy_reference(problem, data)
    given = [array.name for array in problem.filled if array.fill == "data"]
    for changed in (*([array.name] for array in problem.filled if array.fill in DRAWN), *([given] if given else ())):
        after = numpy_reference(problem, {**data, **{name: others[name] for name in changed}})
        for one, other in zip(before, after, strict=True):
            if not np.array_equal(one.value, other.value):
                yield from ((name, one.output.name) for name in changed)


def _unread_ends(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Return each input and axis whose last position affects no output of any problem.

    Problems with indices are left out, because they may select other elements.
    """
    affects: dict[tuple[str, str], bool] = {}
    for problem in problems:
        if any(array.dtype not in FLOATS for array in problem.filled):
            continue
        for array in (array for array in problem.filled if array.fill in DRAWN):
            for place, axis in enumerate(array.axes):
                if not affects.get((array.name, axis)) and array.shape[place] >= _LEAST_EXTENT:
                    affects[array.name, axis] = _reads_end(problem, array, place)
    return [key for key, found in affects.items() if not found]


def _reads_end(problem: Problem, array: Array, place: int) -> bool:
    """Return whether an output depends on the last position of an axis of an input.

    Several draws are tried, because the only outputs of a small problem may all be below zero before a ReLU.
    """
    for seed in range(_DRAWS):
        data = _draw(problem, seed)
        changed = data[array.name].copy().reshape(array.shape)
        other = _draw(problem, seed + 1)[array.name].reshape(array.shape)
        changed.swapaxes(0, place)[-1] = other.swapaxes(0, place)[-1]
        before, after = (
            numpy_reference(problem, {**data, array.name: each.ravel()}) for each in (data[array.name], changed)
        )
        if any(not np.array_equal(one.value, other.value) for one, other in zip(before, after, strict=True)):
            return True
    return False


def _one_sided(problems: Sequence[Problem]) -> list[str]:
    """Return the lines of the reference whose comparisons with integers from an input always have the same result."""
    path = problems[0].operation.folder / NUMPY_REFERENCE
    _Watched.results.clear()
    with_integers = [problem for problem in problems if any(array.dtype not in FLOATS for array in problem.filled)]
    for seed, problem in itertools.islice(itertools.product(range(_DRAWS), with_integers), _RUNS):
        data, whole = _draw(problem, seed), {array.name for array in problem.filled if array.dtype not in FLOATS}
        numpy_reference(problem, {name: own.view(_Watched) if name in whole else own for name, own in data.items()})
    found = sorted(
        line for (file, line), results in _Watched.results.items() if file == str(path) and len(results) == 1
    )
    texts = [(line, linecache.getline(str(path), line).strip()) for line in found]
    return [f"line {line}: {text}" for line, text in texts if not text.startswith("assert")]


def _unshifted(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield each input near zero, and output from which the input's mean is subtracted.

    If a kernel computes a variance as E[x^2] - E[x]^2, for example, it loses digits only on numbers far from zero.
    """
    if problem.operation.bounds.model != "tolerance" or any(edges.mean for edges in edged(problem)):
        return
    data, others = _draw(problem, 0), _draw(problem, 1)
    before = numpy_reference(problem, data)
    for array in problem.filled:
        near = array.fill == "normal" or (array.fill == "uniform" and abs(array.low + array.high) < _OFFSET)
        if not (near and array.grows and array.dtype in FLOATS):
            continue
        name = array.name
        try:
            redrawn, moved = (
                numpy_reference(problem, {**data, name: own}, finite=False)
                for own in (others[name], data[name] + _OFFSET)
            )
        except TemplateError:
            continue  # the reference refuses numbers so far from those that the operation declares
        for first, other, far in zip(before, redrawn, moved, strict=True):
            if first.output.dtype not in FLOATS:
                continue
            by_draw, by_offset = (float(np.abs(each.value - first.value).max()) for each in (other, far))
            if by_offset < _HARDLY * by_draw:
                yield name, first.output.name


def _spreads_nan(problem: Problem) -> bool:
    """Return whether a NaN in an input of floats reaches an output of the reference."""
    data = _draw(problem, 0)
    arrays = [array for array in problem.filled if array.fill in DRAWN and array.dtype in FLOATS and array.shape]
    if not arrays:
        return False
    poisoned = data[arrays[0].name].copy()
    poisoned[0] = np.nan
    return any(
        np.isnan(each.value).any()
        for each in numpy_reference(problem, {**data, arrays[0].name: poisoned}, finite=False)
    )


def _draw(problem: Problem, seed: int) -> dict[str, Doubles]:
    """Return the test data of every input, flat."""
    own = {array.name: _drawn(array, seed) for array in problem.filled if array.fill != "data"}
    return {**own, **given_data(problem, seed)}


def _drawn(array: Array, seed: int) -> Doubles:
    """Return an array's test data, flat. Data that aren't random are the same for every seed."""
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
