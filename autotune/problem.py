"""The start of the pipeline: one problem of an operation (`Problem`) and its use in a study (`Layer`).

`Conv2dProblem` is the typed record of conv2d, whose letters are cuDNN's and CUTLASS's: input x [N, C, H, W],
filters w [K, C/groups, R, S], output y [N, K, P, Q]. Layout `nhwc` stores x [N, H, W, C], w [K, R, S, C/groups],
y [N, P, Q, K]. Any other operation's problems are `DeclaredProblem`s.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self, TypeVar

from autotune.errors import StudyError, quoted
from autotune.operation.declarations import COMPUTED, DRAWN, KEPT, READ, Array
from autotune.operation.operation import FILE, Operation
from autotune.operation.registry import CONV2D, operation
from autotune.operation.storage_types import TYPES
from autotune.trial import Value

_MOST_COUNT = 1 << 62  # elements, products and FLOPs must fit in 64-bit integers
_KEPT = 4096  # number of problems whose arrays and cost are cached


class Problem(ABC):
    """One problem of an operation: its sizes and words, and the values derived from them by the declaration.

    Problems are equal if they have the same operation (by name), sizes and words.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def operation(self) -> Operation:
        """The operation that the problem belongs to."""

    @property
    @abstractmethod
    def values(self) -> Mapping[str, Value]:
        """Every size and word, in the order of the declaration."""

    @abstractmethod
    def with_runtime(self, *sizes: int) -> Self:
        """Return the same shape with other run-time sizes, such as conv2d's n. Sizes that you omit stay the same."""

    def with_runtime_at(self, place: int, size: int) -> Self:
        """Return the same shape with a different run-time size at position `place`."""
        own = self.runtime_sizes
        return self.with_runtime(*own[:place], size, *own[place + 1 :])

    def with_each_runtime(self, size: int) -> Self:
        """Return the same shape with every run-time size set to `size`."""
        return self.with_runtime(*(size for _ in self.operation.runtime))

    @property
    def runtime_sizes(self) -> tuple[int, ...]:
        """The sizes passed to a kernel at launch."""
        values = self.values
        return tuple(int(values[name]) for name in self.operation.runtime)

    @property
    def runtime_size(self) -> int:
        """The first run-time size, which is the operation's leading size."""
        return self.runtime_sizes[0]

    @property
    def at_runtime(self) -> str:
        """The run-time sizes as they appear in messages: `n = 8`, or `batch x m = 8 x 100` if there are several."""
        return f"{self.operation.runtime_name} = {by(self.runtime_sizes)}"

    @property
    def shape(self) -> tuple[tuple[str, Value], ...]:
        """All sizes and words except the run-time sizes. Problems of the same shape share their kernels."""
        return tuple(item for item in self.values.items() if item[0] not in self.operation.runtime)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Every array of the problem, in the operation's order."""
        return _evaluated(self.operation, self).arrays

    def array(self, name: str) -> Array:
        """Return the array with this name."""
        return next(array for array in self.arrays if array.name == name)

    def has(self, name: str) -> bool:
        """Return whether the problem has an array with this name. Some of an operation's arrays are optional."""
        return any(array.name == name for array in self.arrays)

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The arrays that a kernel reads and must not change."""
        return tuple(array for array in self.arrays if array.role in KEPT)

    @property
    def filled(self) -> tuple[Array, ...]:
        """The arrays that a kernel reads, including those that it changes."""
        return tuple(array for array in self.arrays if array.role in READ)

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The arrays that a kernel computes."""
        return tuple(array for array in self.arrays if array.role in COMPUTED)

    @property
    def output(self) -> Array:
        """The first array that a kernel computes."""
        return self.outputs[0]

    @property
    def dtype(self) -> str:
        """The problem's storage type, which is the value of its word `dtype`."""
        return str(self.values["dtype"])

    @property
    def element_bytes(self) -> int:
        """Size of one stored element in bytes."""
        return TYPES[self.dtype].size_bytes

    @property
    def reduction(self) -> int:
        """L, the number of products summed into one output."""
        return _evaluated(self.operation, self).reduction

    @property
    def flops(self) -> int:
        """The number of floating-point operations of the direct algorithm. A multiply-add counts as two."""
        return _evaluated(self.operation, self).flops

    @property
    def tensor_bytes(self) -> int:
        """Total size of all arrays in bytes."""
        return sum(array.size_bytes for array in self.arrays)

    def names(self) -> dict[str, Value]:
        """Return the values that template expressions can use, by name: sizes, words and the operation's derived
        values.
        """
        return dict(_evaluated(self.operation, self).names)


@dataclass(frozen=True, slots=True)
class DeclaredProblem(Problem):
    """A problem of an operation without a typed record.

    Raises StudyError if the sizes and words don't make a valid problem.
    """

    operation: Operation = field(compare=False, repr=False)
    name: str
    """name of the operation"""
    given: tuple[tuple[str, Value], ...]
    """every size and word with its value, in the order of the declaration"""

    def __post_init__(self) -> None:
        self.operation.check(self.values)
        if not self.outputs:
            raise StudyError(f"{FILE}: every array of the roles {' and '.join(COMPUTED)} is left out here by its when")
        for array in self.arrays:
            if min(array.shape) < 1:
                shape = " x ".join(map(str, array.shape))
                raise StudyError(f"{array.name} would have {shape} elements; a rule in [rules] can say what is wrong")
            if array.elements > _MOST_COUNT:
                raise StudyError(f"{array.name} would have more than 2^62 elements; make it smaller")
            if array.role in READ and array.fill in DRAWN and array.least > array.most:
                raise StudyError(f"{array.name}: there are no whole numbers from {array.least} to {array.most}")
            low, high = TYPES[array.dtype].whole
            if array.role in READ and array.fill in DRAWN and not low <= array.least <= array.most <= high:
                raise StudyError(
                    f"{array.name}: test data from {array.least} to {array.most}; expected whole numbers from {low} "
                    f"to {high}, and such that sums of them are exact"
                )
        for key, value in (("reduction", self.reduction), ("flops", self.flops)):
            if value < 1:
                what = (
                    "; for an operation without arithmetic, such as a copy, count one per output"
                    if key == "flops"
                    else ""
                )
                raise StudyError(f"{FILE}: cost.{key} is {value}: expected at least 1{what}")
            if value > _MOST_COUNT:
                raise StudyError(f"{FILE}: cost.{key} is {quoted(value)}: expected at most 2^62")

    @property
    def values(self) -> Mapping[str, Value]:
        """Every size and word, in the order of the declaration."""
        return dict(self.given)

    def with_runtime(self, *sizes: int) -> DeclaredProblem:
        """Return the same shape with other run-time sizes. Sizes that you omit stay the same."""
        values = {**self.values, **dict(zip(self.operation.runtime, sizes, strict=False))}
        return dataclasses.replace(self, given=tuple(values.items()))

    def __str__(self) -> str:
        values, declared = self.values, self.operation
        shown = [f"{size.name} {values[size.name]}" for size in declared.sizes if values[size.name] != size.default]
        shown += [
            str(values[name]) for name, words in declared.words.items() if name == "dtype" or values[name] != words[0]
        ]
        return " ".join((self.name, *shown))


@dataclass(frozen=True, slots=True)
class Conv2dProblem(Problem):
    """One conv2d forward pass: sizes, stride, padding, dilation, groups, storage type, layout and epilogue.

    Valid and derived values are declared in `templates/conv2d/operation.toml`; this record adds typed fields. Raises
    StudyError if a size is out of range, if the filter exceeds the padded input, or if groups do not divide c and k.
    """

    n: int
    """images"""
    c: int
    """input channels"""
    h: int
    """input rows"""
    w: int
    """input columns"""
    k: int
    """output channels"""
    r: int
    """filter rows"""
    s: int
    """filter columns"""
    stride_h: int = 1
    """rows between two outputs"""
    stride_w: int = 1
    """columns between two outputs"""
    pad_h: int = 0
    """rows of zeros above and below"""
    pad_w: int = 0
    """columns of zeros left and right"""
    dilation_h: int = 1
    """rows between two taps"""
    dilation_w: int = 1
    """columns between two taps"""
    groups: int = 1
    """groups of channels; each output channel reads one"""
    dtype: str = "f32"
    """storage type: f32, f16 or bf16"""
    layout: str = "nchw"
    """`nchw` or `nhwc`"""
    epilogue: str = "none"
    """the operations after the sum: none, bias, bias_relu, bias_add_silu, ..."""

    def __post_init__(self) -> None:
        self.operation.check(self.values)

    @property
    def operation(self) -> Operation:
        """The bundled operation conv2d."""
        return operation(CONV2D)

    @property
    def values(self) -> Mapping[str, Value]:
        """Every field by its name."""
        return {name: getattr(self, name) for name in _FIELDS}

    @property
    def p(self) -> int:
        """Output height."""
        return int(_evaluated(self.operation, self).names["p"])

    @property
    def q(self) -> int:
        """Output width."""
        return int(_evaluated(self.operation, self).names["q"])

    @property
    def activation(self) -> str:
        """The function that the epilogue applies to the finished sums, or `identity`."""
        return str(_evaluated(self.operation, self).names["activation"])

    def with_runtime(self, *sizes: int) -> Conv2dProblem:
        """Return the same layer shape with another batch size."""
        return dataclasses.replace(self, n=sizes[0])

    def __str__(self) -> str:
        text = f"n{self.n} c{self.c} {self.h}x{self.w} k{self.k} {self.r}x{self.s}"
        for label, pair, default in (
            ("stride", (self.stride_h, self.stride_w), 1),
            ("pad", (self.pad_h, self.pad_w), 0),
            ("dilation", (self.dilation_h, self.dilation_w), 1),
        ):
            if pair != (default, default):
                text += f" {label} {pair[0]}" if pair[0] == pair[1] else f" {label} {pair[0]}x{pair[1]}"
        if self.groups != 1:
            text += f" groups {self.groups}"
        text += f" {self.dtype} {self.layout}"
        return text if self.epilogue == "none" else f"{text} {self.epilogue}"


def by(sizes: Sequence[int]) -> str:
    """Format run-time sizes: `8`, or `8 x 100` if there are several."""
    return " x ".join(map(str, sizes))


_FIELDS = tuple(each.name for each in dataclasses.fields(Conv2dProblem))


P = TypeVar("P", bound=Problem)


def make_problem(declared: Operation, given: Mapping[str, Value]) -> Problem:
    """Create a problem from sizes and words. Values that you leave out get the operation's defaults.

    Raises StudyError for unknown names, and if the values don't make a valid problem.
    """
    values = declared.complete(given)
    if declared.name == CONV2D:
        return Conv2dProblem(**values)  # type: ignore[arg-type]  # checked by the record
    return DeclaredProblem(declared, declared.name, tuple(values.items()))


def valid_problems(problems: Iterable[Callable[[], P]]) -> Iterator[P]:
    """Call each function and yield the problem that it returns, skipping those that break one of their operation's
    rules.
    """
    for problem in problems:
        with suppress(StudyError):
            yield problem()


def as_conv2d(problem: Problem, what: str) -> Conv2dProblem:
    """Return the problem as a `Conv2dProblem`.

    For problems of other operations, raises a StudyError saying that `what` supports only conv2d.
    """
    if isinstance(problem, Conv2dProblem):
        return problem
    raise StudyError(f"{what} is for {CONV2D} only, and this is {problem}")


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """The values derived from a problem's sizes and words."""

    names: Mapping[str, Value]
    arrays: tuple[Array, ...]
    reduction: int
    flops: int


@lru_cache(maxsize=_KEPT)
def _evaluated(declared: Operation, problem: Problem) -> _Evaluated:
    names = declared.names_from(problem.values)
    return _Evaluated(
        names=names,
        arrays=declared.arrays_of(names),
        reduction=declared.reduction.integer(names),
        flops=declared.flops.integer(names),
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """A problem with its name in a study and the number of times the network runs it, which is its weight in
    summaries.
    """

    name: str
    """name of the layer in the study"""
    problem: Problem
    """shape and types of the layer"""
    count: int = 1
    """number of times that the network runs the layer"""
