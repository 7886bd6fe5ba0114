"""The contents of an operation's file: sizes, parts of words, rules, distances and arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from autotune.errors import StudyError
from autotune.expressions.expression import Bound, Expression
from autotune.operation.storage_types import TYPES
from autotune.trial import Value

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_SIZE = 2**31 - 1  # a size is a 32-bit int in every kernel
Role = Literal["in", "weights", "out", "inout", "scratch", "scalar"]
ROLES: tuple[Role, ...] = ("in", "weights", "out", "inout", "scratch", "scalar")
"""in, out and inout: arrays of each launch. weights: prepared once and used for many launches. scratch: arrays whose
content does not matter before or after a launch. scalar: one number of each launch, which kernels take by value.
"""
READ: tuple[Role, ...] = ("in", "weights", "inout", "scalar")
"""Roles of arrays whose contents a kernel needs."""
COMPUTED: tuple[Role, ...] = ("out", "inout")
"""Roles of arrays that a kernel computes."""
KEPT: tuple[Role, ...] = ("in", "weights", "scalar")
"""Roles of arrays that a kernel must not change."""
SCALAR: Role = "scalar"
Fill = Literal["normal", "uniform", "integers", "range", "permutation", "ones", "zeros", "data"]
FILLS: tuple[Fill, ...] = ("normal", "uniform", "integers", "range", "permutation", "ones", "zeros", "data")
"""The kinds of test data. Along the last axis, `range` counts from 0, and `permutation` shuffles these numbers; `data`
takes the test data from data.py.
"""
DRAWN: tuple[Fill, ...] = ("normal", "uniform", "integers")
"""Fills whose second data set consists of integers between two bounds. All other fills give the same data twice."""
_MULTIPLIER = 0.618  # step of a permutation, as a fraction of its length
_SHIFT = 7919  # number of places by which the permutation of the next row is rotated
ErrorModel = Literal["multilinear", "tolerance", "exact"]
ERROR_MODELS: tuple[ErrorModel, ...] = ("multilinear", "tolerance", "exact")
"""With `multilinear`, an output is a sum of products, whose number and magnitudes determine its error bound."""
IN_MESSAGE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Size:
    """One of a problem's sizes, an integer."""

    name: str
    doc: str
    default: int | None
    """None: every problem must give the size"""
    least: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of each word in an enumeration, with its own name, such as an epilogue's activation."""

    name: str
    word: str
    """name of the enumeration"""
    values: tuple[str, ...]
    """possible values; a word without this part has the first one"""
    of: Mapping[str, str]
    """word to the value of this part, in the order of the words"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that a problem must meet."""

    holds: Bound
    message: str
    """the error for a violation, with expressions in ${...}"""

    def broken(self, names: Mapping[str, Value]) -> str:
        """Return the error for a problem that breaks the rule, or "" if it doesn't."""
        if self.holds.integer(names):
            return ""
        where = self.holds.expression.where
        return IN_MESSAGE.sub(lambda found: str(Expression(found[1], where).bind({}).value(names)), self.message)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Error bounds for outputs, in addition to the storage type's rounding."""

    model: ErrorModel
    rtol: float = 0.0
    """relative tolerance: a factor on the magnitude of the reference"""
    atol: float = 0.0
    """absolute tolerance, added to the relative one"""
    nan_propagates: bool = False
    """whether NaN and infinite inputs must give the reference's outputs"""

    def of(self, output: Array | ArrayTemplate) -> Bounds:
        """Return the bounds for one output, which may declare its own tolerance."""
        rtol, atol = (
            given if own is None else own for own, given in ((output.rtol, self.rtol), (output.atol, self.atol))
        )
        return replace(self, rtol=rtol, atol=atol)

    def unit(self, value: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the unit of errors for outputs that aren't sums of products, computed from their reference values."""
        return self.atol + self.rtol * abs(value)


@dataclass(frozen=True, slots=True)
class Apart:
    """Part of the distance between two problems."""

    of: Bound
    weight: float
    factors: bool
    """True: the weight counts for each factor of two; False: once for any difference"""

    def apart(self, one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
        """Return this part's contribution to the distance between two problems, given their values by name."""
        if self.factors:
            return self.weight * abs(math.log2(max(1, self.of.integer(one)) / max(1, self.of.integer(other))))
        return self.weight if self.of.any(one) != self.of.any(other) else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The positions on an axis that outputs need: tap t of output i is at i * stride + t * dilation - pad.

    Raises StudyError for a number that is out of range.
    """

    outputs: int
    taps: int
    stride: int
    dilation: int
    pad: int

    def __post_init__(self) -> None:
        for name, least in (("outputs", 0), ("taps", 0), ("stride", 1), ("dilation", 1), ("pad", 0)):
            if not least <= getattr(self, name) <= MAX_SIZE:
                raise StudyError(f"{name} of a window is {getattr(self, name)}: expected {least} to {MAX_SIZE}")


@dataclass(frozen=True, slots=True)
class Array:
    """One of a problem's arrays."""

    name: str
    role: Role
    axes: tuple[str, ...]
    """the expression of each extent, such as `n` or `c // groups`"""
    shape: tuple[int, ...]
    """in storage order, the last axis contiguous"""
    dtype: str
    per_item: bool
    """whether each unit of the leading size, such as each image, has its own part"""
    grows: bool
    """whether a run-time size is in its shape"""
    fill: Fill
    least: int
    most: int
    """`least` and `most` are the bounds of test data that are whole numbers"""
    low: float
    high: float
    """`low` and `high` are the bounds of uniform test data"""
    windows: tuple[Window | None, ...]
    """the window on each axis; None: the outputs need the whole axis"""
    rtol: float | None = None
    atol: float | None = None
    """`rtol` and `atol` are set for an output with its own tolerance"""

    @property
    def elements(self) -> int:
        """The number of elements of the whole array."""
        return math.prod(self.shape)

    @property
    def whole_bounds(self) -> tuple[int, int]:
        """The smallest and largest test value, if the test data are integers: drawn ones, ones or zeros."""
        if self.fill in DRAWN:
            return self.least, self.most
        return (1, 1) if self.fill == "ones" else (0, 0)

    @property
    def steps(self) -> tuple[int, int, int]:
        """The length of the last axis, and the increments per position and per row, for `range` and `permutation`.

        At position i of row r, the value is (i * step + r * shift) % length.
        """
        length = self.shape[-1]
        if self.fill == "range":
            return length, 1, 0
        step = max(1, round(_MULTIPLIER * length))
        while math.gcd(step, length) > 1:
            step += 1
        return length, step, _SHIFT

    @property
    def size_bytes(self) -> int:
        """Size of the whole array in bytes."""
        return self.elements * TYPES[self.dtype].size_bytes


@dataclass(frozen=True, slots=True)
class ArrayTemplate:
    """One of the file's `[[array]]` tables, before it is evaluated for a problem."""

    name: str
    role: Role
    shapes: Mapping[str, tuple[Bound, ...]]
    """layout to extents; the key is empty if the operation has no layouts"""
    type_word: str
    """the word that names the storage type of elements: dtype, or another word of types"""
    dtypes: Mapping[str, str]
    """value of that word to the storage type of elements"""
    when: Bound
    fill: Fill
    least: Bound
    most: Bound
    low: float
    high: float
    windows: Mapping[str, Mapping[str, Bound]]
    """axis to the fields of its Window"""
    rtol: float | None
    atol: float | None

    def evaluate(self, names: Mapping[str, Value], runtime: Sequence[str]) -> Array:
        """Return a problem's array, given the problem's values by name."""
        extents = self.shapes[""] if "" in self.shapes else self.shapes[str(names["layout"])]
        return Array(
            name=self.name,
            role=self.role,
            axes=tuple(extent.expression.text for extent in extents),
            shape=tuple(extent.integer(names) for extent in extents),
            dtype=self.dtypes[str(names[self.type_word])],
            per_item=any(runtime[0] in extent.names for extent in extents),
            grows=any(extent.names.intersection(runtime) for extent in extents),
            fill=self.fill,
            least=self.least.integer(names),
            most=self.most.integer(names),
            low=self.low,
            high=self.high,
            windows=tuple(self._window(extent.expression.text, names) for extent in extents),
            rtol=self.rtol,
            atol=self.atol,
        )

    def _window(self, axis: str, names: Mapping[str, Value]) -> Window | None:
        if axis not in self.windows:
            return None
        return Window(**{key: bound.integer(names) for key, bound in self.windows[axis].items()})
