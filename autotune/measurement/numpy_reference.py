"""Run an operation's NumPy reference, `reference.py` in the operation's folder, in float64 on the host.

The file defines a function `reference(p, ...)`, where `p` has the problem's sizes, words and derived sizes as
attributes. The other arguments are the inputs in the operation's order: float64 arrays in the declared shapes, None for
an array that the problem lacks, and a float for a scalar. The function must not change them. It returns the output, or
a tuple if there are several. With the error model `multilinear`, it returns a pair: the output, and the sums of the
magnitudes of each output's terms. If padding leaves fewer than `reduction` products, it returns a triple that also
contains the number of products in each output.

The file `data.py` defines `data(p, random)`, which returns a dict with test data for arrays with `fill = "data"`.
"""

from __future__ import annotations

import inspect
import math
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace

import numpy as np
import numpy.typing as npt

from autotune.errors import TemplateError
from autotune.measurement.storage import stored
from autotune.operation.declarations import COMPUTED, SCALAR, Array
from autotune.operation.operation import DATA, FILE, NUMPY_REFERENCE, REFERENCE, Operation
from autotune.operation.storage_types import FLOATS, TYPES
from autotune.problem import Problem
from autotune.toml_table import did_you_mean

Doubles = npt.NDArray[np.float64]
FUNCTIONS: Mapping[str, Callable[..., Doubles]] = {
    "min": np.minimum,
    "max": np.maximum,
    "exp": np.exp,
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "tanh": np.tanh,
    "log1p": np.log1p,
}
"""Array functions used in the expressions of activations. An operation's reference may import them."""
_FUNCTION = "reference"
_ROUNDED = 1e-6  # fraction by which a magnitude may be too small due to rounding
_LEAST_S, _MOST_S = 20.0, 140.0  # time limits of a reference; two references of a layer must finish within 300 s
_FLOPS_PER_S = 1e5  # speed of loops in Python on a busy machine


def in_numpy(declared: Operation) -> bool:
    """Return whether the operation's reference uses NumPy.

    Raises TemplateError if there is no reference, or if there are two.
    """
    return _reference(declared)[0] == NUMPY_REFERENCE


def in_cuda(declared: Operation) -> str:
    """Return the text of a reference written in CUDA C++."""
    return _reference(declared)[1].removeprefix("#pragma once\n")


def _reference(declared: Operation) -> tuple[str, str]:
    """Return the file name and text of the operation's reference."""
    if not declared.references and not declared.folder.is_dir():
        raise TemplateError(
            f"{declared.name}: the operation's folder is not here; name its parent folder with --family-dir"
        )
    references = [(name, text) for name, text in declared.references if name != DATA]
    if len(references) != 1:
        what = "has both" if references else f"{declared.name} has no reference"
        raise TemplateError(f"{declared.folder}: {what}; expected {NUMPY_REFERENCE} or {REFERENCE}")
    ((name, text),) = references
    if name == REFERENCE and sum(array.role in COMPUTED for array in declared.arrays) > 1:
        path = declared.folder / REFERENCE
        raise TemplateError(f"{path}: computes one output, but {declared.name} has several; write {NUMPY_REFERENCE}")
    return name, text


@dataclass(frozen=True, slots=True)
class Expected:
    """An output's expected values, as flat arrays."""

    output: Array
    value: Doubles
    unit: Doubles
    """the error unit of each element"""
    products: Doubles
    """the number of products of each element"""


class _Names(SimpleNamespace):
    """The argument `p` that a reference gets."""

    def __getattr__(self, name: str) -> object:
        """Raise AttributeError for an unknown name, with a suggestion."""
        raise AttributeError(f"p has no {name}{did_you_mean(name, vars(self))}; it has {', '.join(vars(self))}")


def numpy_reference(problem: Problem, inputs: Mapping[str, Doubles], *, finite: bool = True) -> tuple[Expected, ...]:
    """Run the reference and return the expected outputs.

    `inputs` are flat arrays; arrays that a run changes are given in their state before the run. With `finite`, outputs
    must be finite. Raises TemplateError if the function is missing, fails, takes too long or returns the wrong shape.
    """
    declared = problem.operation
    path = declared.folder / NUMPY_REFERENCE
    arrays = {array.name: array for array in problem.filled}
    given = [_given(arrays.get(name), inputs.get(name)) for name in declared.inputs]
    function = _function(declared)
    try:
        with np.errstate(all="ignore"), _within(min(_MOST_S, _LEAST_S + problem.flops / _FLOPS_PER_S)):
            found = function(_Names(**problem.names()), *given)
    except BaseException as error:  # including SystemExit, because the process must survive the reference
        raise TemplateError(f"{path}: {_line(error, path)}{_FUNCTION} on {problem}: {_words(error)}") from error
    outputs = problem.outputs
    several: object = (found,) if len(outputs) == 1 else found
    if not isinstance(several, tuple) or len(several) != len(outputs):
        names = ", ".join(output.name for output in outputs)
        raise TemplateError(f"{path}: {_FUNCTION} returns {_kind(several)}: expected a tuple of {names}")
    return tuple(_expected(each, output, problem, finite=finite) for each, output in zip(several, outputs, strict=True))


def _given(array: Array | None, values: Doubles | None) -> Doubles | float | None:
    """Return one of the function's arguments: a float for a scalar, a read-only array, or None if the problem lacks it.

    If a reference could change its inputs, it could return excessive magnitudes without causing an error.
    """
    if array is None or values is None:
        return None
    if array.role == SCALAR:
        return float(values[0])
    view = values.reshape(array.shape).view()
    view.flags.writeable = False
    return view


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError in code that takes longer, at the next Python instruction. This only works in the main
    thread.
    """

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it did not end within {limit_s:.0f} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _line(error: BaseException, path: Path) -> str:
    """Return the line of the reference that raised an error, as a prefix for a message."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""


def _words(error: BaseException) -> str:
    """Return an error's type and message on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _kind(found: object) -> str:
    return f"{len(found)} things" if isinstance(found, tuple) else type(found).__name__


def _expected(found: object, output: Array, problem: Problem, *, finite: bool) -> Expected:
    """Check what the function returned for one output, and convert it to Expected."""
    declared, most = problem.operation, float(problem.reduction)
    path, model = declared.folder / NUMPY_REFERENCE, declared.bounds.model
    if model != "multilinear":
        if isinstance(found, tuple):
            raise TemplateError(
                f"{path}: {_FUNCTION} returns tuple: expected one array, because the error model is {model}"
            )
        value = _checked(found, output, declared, finite=finite)
        return Expected(output, value, declared.bounds.of(output).unit(value), np.full(value.shape, most))
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        expected = f"a pair of {output.name} and its terms' magnitudes"
        raise TemplateError(
            f"{path}: {_FUNCTION} returns {_kind(found)}: expected {expected}, because the error model is {model}"
        )
    value = _checked(found[0], output, declared, finite=finite)
    magnitude = _checked(found[1], output, declared, "the magnitudes of ", finite=finite)
    if np.any(magnitude < (1 - _ROUNDED) * np.abs(value)):
        raise TemplateError(
            f"{path}: {_FUNCTION} gives magnitudes of {output.name} that are below its values: expected the sums of "
            "the terms' absolute values, abs(x) + abs(bias) of x + bias"
        )
    products = (
        _checked(found[2], output, declared, "the products of ") if len(found) == 3 else np.full(value.shape, most)
    )
    if np.any(products < 0) or np.any(products > most):
        raise TemplateError(
            f"{path}: {_FUNCTION} gives {products.min():g} to {products.max():g} products of {output.name}: expected "
            f"0 to {most:g}, the reduction of {problem}"
        )
    return Expected(output, value, magnitude, products)


def _checked(part: object, output: Array, declared: Operation, what: str = "", *, finite: bool = True) -> Doubles:
    """Check an output or its magnitudes, and return them as flat doubles.

    Raises TemplateError for the wrong type or shape or, with `finite`, for numbers that aren't finite.
    """
    of = f"{declared.folder / NUMPY_REFERENCE}: {_FUNCTION} returns"
    try:
        found = np.asarray(part)
        if found.dtype.kind not in "biufO":
            raise TypeError("complex numbers" if found.dtype.kind == "c" else f"elements of {found.dtype}")
        values = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"{of} no array of numbers for {what}{output.name}: {_words(error)}") from None
    if found.dtype.kind == "f" and found.dtype.itemsize < values.dtype.itemsize:
        raise TemplateError(f"{of} {found.dtype} for {what}{output.name}, which rounds it: expected float64")
    if values.shape != output.shape:
        given = f"an array of {values.shape}" if values.shape else repr(part)
        raise TemplateError(f"{of} {given} for {what}{output.name}: expected an array of {output.shape}")
    if finite and not np.isfinite(values).all():
        place = np.argwhere(~np.isfinite(values))[0]
        where = ", ".join(f"{axis} = {at}" for axis, at in zip(output.axes, place, strict=True))
        raise TemplateError(f"{of} {values[tuple(place)]} for {what}{output.name} at {where}: expected numbers")
    if output.dtype not in FLOATS:
        low, high = TYPES[output.dtype].whole
        if not what and values.size and not (low <= values.min() and values.max() <= high):
            raise TemplateError(
                f"{of} {values.min():.0f} to {values.max():.0f} for {output.name}: expected {low} to {high}, "
                f"the range of {output.dtype}; make the inputs' `integers` smaller, or wrap around as the kernels do"
            )
    return values.ravel()


def given_data(problem: Problem, seed: int) -> Mapping[str, Doubles]:
    """Return the test data for arrays with `fill = "data"`, from `data(p, random)` in data.py.

    The arrays are flat and rounded to their storage types. Raises TemplateError if the function is missing, fails or
    returns anything other than the expected arrays.
    """
    wanted = {array.name: array for array in problem.filled if array.fill == "data"}
    if not wanted:
        return {}
    declared = problem.operation
    path, text = declared.folder / DATA, dict(declared.references).get(DATA)
    if text is None:
        raise TemplateError(f"{path}: missing; expected a function data(p, random) for {', '.join(wanted)}")
    function = _executed(path, text).get("data")
    try:
        with _within(_LEAST_S):
            found = function(_Names(**problem.names()), np.random.default_rng(seed))  # type: ignore[operator]  # its error is reported below
    except BaseException as error:
        raise TemplateError(f"{path}: {_line(error, path)}data(p, random) on {problem}: {_words(error)}") from error
    if not isinstance(found, Mapping) or found.keys() != wanted.keys():
        raise TemplateError(f"{path}: data(p, random): expected a dict of {', '.join(wanted)}")
    given = {}
    for name, array in wanted.items():
        values = np.asarray(found[name])
        if values.shape != array.shape or values.dtype.kind not in "biuf":
            raise TemplateError(f"{path}: {name} on {problem}: expected numbers of the shape {array.shape}")
        given[name] = stored(values.astype(np.float64), array.dtype).ravel()
        if array.dtype not in FLOATS and not np.array_equal(given[name], values.ravel()):
            raise TemplateError(f"{path}: {name} on {problem}: expected whole numbers in the range of {array.dtype}")
    return given


def _executed(path: Path, text: str) -> Mapping[str, object]:
    """Execute one of the operation's files and return its global names."""
    names: dict[str, object] = {}
    try:
        with _within(_LEAST_S):
            exec(compile(text, str(path), "exec"), names)  # noqa: S102 - the operation's own code
    except BaseException as error:
        raise TemplateError(f"{path}: {_line(error, path)}{_words(error)}") from error
    return names


def _function(declared: Operation) -> Callable[..., object]:
    path = declared.folder / NUMPY_REFERENCE
    function = _executed(path, _reference(declared)[1]).get(_FUNCTION)
    wanted = f"{path}: expected a function {_FUNCTION}(p, {', '.join(declared.inputs)})"
    if not callable(function):
        raise TemplateError(wanted)
    takes = inspect.signature(function)
    try:
        takes.bind(None, *declared.inputs)
    except TypeError:
        raise TemplateError(f"{wanted}, got {_FUNCTION}{takes}") from None
    taken = tuple(takes.parameters)[1:]
    if taken != declared.inputs and set(taken) == set(declared.inputs):
        raise TemplateError(f"{wanted}, with the arrays in the order of {FILE}, got {_FUNCTION}{takes}")
    return function
