"""The data used to verify kernels: the kinds of data, the number of distinct images, and the memory that they need."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autotune.autotune_runtime.activations import BY_WORD
from autotune.errors import DeviceError, StudyError
from autotune.measurement.guard_bands import GuardedArray
from autotune.measurement.numpy_reference import in_numpy
from autotune.operation.declarations import Array
from autotune.operation.storage_types import FLOATS, TYPES
from autotune.problem import Problem

REFERENCE_BYTES = 256 << 20  # maximum size of one reference
_UNIT_REFERENCE_BYTES = 4 << 30  # maximum reference of one unit of the run-time size, such as an image or a video
_REFERENCE_ELEMENT_BYTES = 16  # per output: a double for the value, and two floats for the error unit
_LEAST_UNITS = 3  # minimum number of distinct units; with fewer, units swapped in pairs would be equal
_PERIODS = (61, 53)  # number of images after which each data set repeats; primes, so that no power of two is a multiple
_MEAN = 100.0  # mean of numbers with a spread of 1; squaring such floats loses most digits of the spread
_LEAST_FRACTION_BITS = 7  # minimum for a type that can store numbers around _MEAN, NaN and infinities
_LARGE, _F16_LARGE = 64.0, 4.0  # factors on normal data; sums in f16 stay below 65504
_SMALL, _F16_SMALL = 2.0**-40, 2.0**-12  # factors on normal data; in f16 half of the numbers and sums are denormal
_SMALL_OF_TOLERANCE = 2.0**-10  # factor on normal data if a constant such as an epsilon affects the outputs
_EXTREME, _F16_EXTREME = 2.0**100, 2.0**13  # larger than any sentinel such as 1e30; f16 can store four times as much
_TINY = {"f32": 2.0**-140, "bf16": 2.0**-130, "f16": 2.0**-20, "f64": 2.0**-1060}  # makes numbers denormal
Kind = Literal["normal", "integers", "edges"]


@dataclass(frozen=True, slots=True)
class Edges:
    """Arrays with unusual numbers that normal test data lack. A field of 0 leaves its kind out."""

    arrays: tuple[Array, ...]
    mean: float = 0.0
    """some numbers are around this mean, others around its negative"""
    special: bool = False
    """whether there are NaN and infinities"""
    large: float = 0.0
    """factor on normal data that makes some numbers larger"""
    small: float = 0.0
    """factor on normal data that makes some numbers smaller"""
    zeros: bool = False
    """whether whole units of the first axis are zero"""
    extreme: bool = False
    """whether there are large, denormal and zero numbers of either sign, the most extreme ones at the end of a row"""
    any_finite: bool = False
    """whether any finite output is accepted where the reference is finite, because the growth of errors is unknown"""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(array.name for array in self.arrays)

    def numbers(self, array: Array) -> tuple[np.generic, ...]:
        """Return the last arguments of `put_edges` in check.cu for one of these arrays."""
        extreme = (_F16_EXTREME if array.dtype == "f16" else _EXTREME) if self.extreme else 0.0
        numbers = map(np.float64, (self.mean, self.large, self.small, extreme, _TINY[array.dtype]))
        mean, large, small, *others = numbers
        special = self.special + (self.special and array.fill == "normal")
        return mean, large, small, np.int32(self.zeros), *others, np.int32(special)

    def __str__(self) -> str:
        told = [f"numbers around {self.mean:g} and {-self.mean:g}"] * bool(self.mean)
        told += ["NaN and infinities"] * self.special
        told += [f"numbers {self.large:g} times larger"] * bool(self.large)
        told += [f"numbers {1 / self.small:g} times smaller"] if self.small else []
        told += ["nothing but zeros"] * self.zeros
        told += ["large, denormal and zero numbers"] * self.extreme
        return f"data with {' and '.join(told)} in {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class DataSet:
    """Inputs on the device, and the reference for the first `period` images."""

    kind: Kind
    inputs: Mapping[str, GuardedArray]
    """input arrays by name, in the operation's order; arrays that kernels change are included, as before a run"""
    period: int
    """number of images after which inputs repeat"""
    references: Mapping[str, tuple[int, int]]
    """for each output, the addresses of the reference values and of the error units"""
    edges: Edges | None = None
    """the special numbers of a data set of the kind `edges`"""


def data_bytes(problem: Problem) -> int:
    """Return the maximum memory of a Verifier without copies: all data sets with their references."""
    reference = _REFERENCE_ELEMENT_BYTES * sum(output.elements for output in problem.outputs)
    most = max(REFERENCE_BYTES, _LEAST_UNITS * reference // problem.runtime_size)
    sets = 2 + len(edged(problem))
    return sets * (problem.tensor_bytes + min(most, reference))


def edged(problem: Problem) -> tuple[Edges, ...]:
    """Return the special values of further data sets, which a correct kernel must handle.

    - NaN and infinities, if the operation declares that NaN propagates. They are left out if a C++ reference applies an
      activation that rounds, because the result for infinities then depends on the formula.
    - With a tolerance and one array of normal data: numbers far from zero, and smaller numbers. With several arrays,
      products of two numbers far from zero could need more digits than a float has.
    - With a tolerance and several arrays: larger numbers, for which outputs must be finite (exp may overflow).
    - With a tolerance: whole units of zeros, such as padding.
    - For sums of products: larger and smaller numbers.
    - For exact outputs: extreme numbers.
    """
    operation, outputs = problem.operation, [output.dtype for output in problem.outputs]
    bounds = operation.bounds
    arrays = tuple(
        array
        for array in problem.filled
        if array.grows
        and array.role != "weights"
        and array.fill in ("normal", "uniform")
        and TYPES[array.dtype].fraction_bits >= _LEAST_FRACTION_BITS
    )
    if not arrays:
        return ()
    found = []
    numpy = in_numpy(operation)  # a reference in C++ computes sums of products
    normal = all(array.fill == "normal" for array in arrays)
    shifted = bounds.model == "tolerance" and normal and len(arrays) == 1
    mean, small = (_MEAN, _SMALL_OF_TOLERANCE) if shifted else (0.0, 0.0)
    zeros = bounds.model == "tolerance" and all(
        array.fill == "normal" or array.low <= 0 <= array.high for array in arrays
    )
    zeros = zeros and all(dtype in FLOATS for dtype in outputs)  # integer types cannot store 0 / 0
    if numpy and (shifted or zeros or bounds.nan_propagates):
        found.append(Edges(arrays, mean, bounds.nan_propagates, small=small, zeros=zeros))
    if numpy and bounds.model == "tolerance" and normal and not shifted:
        large = _F16_LARGE if "f16" in [*outputs, problem.dtype] else _LARGE
        found.append(Edges(arrays, large=large, any_finite=True))
    narrow = any(TYPES[dtype].size_bytes == 1 for dtype in outputs)  # conversions to 8-bit types have their own rules
    if bounds.model == "multilinear" and not narrow:
        large, small = (_F16_LARGE, _F16_SMALL) if "f16" in [*outputs, problem.dtype] else (_LARGE, _SMALL)
        activation = BY_WORD.get(str(problem.names().get("activation")))
        special = not numpy and bounds.nan_propagates and not (activation and activation.rounds)
        found.append(Edges(arrays, large=large, small=small, special=special))
    if numpy and bounds.model == "exact" and normal and not narrow:
        found.append(Edges(arrays, extreme=True))
    return tuple(found)


def periods(problem: Problem) -> tuple[int, int]:
    """Return the numbers of images after which normal data and integer data repeat.

    Raises DeviceError if a reference would be too large.
    """
    outputs = max(1, sum(output.elements for output in problem.outputs) // problem.runtime_size)
    most = REFERENCE_BYTES // (_REFERENCE_ELEMENT_BYTES * outputs)
    if _REFERENCE_ELEMENT_BYTES * outputs > _UNIT_REFERENCE_BYTES:
        what = f"the reference for {problem.operation.leading} = 1 exceeds {_UNIT_REFERENCE_BYTES >> 20} MB"
        raise DeviceError(f"{problem}: {what}; make it smaller")
    of_normal, of_integers = (_period(problem, max(most, _LEAST_UNITS), prime) for prime in _PERIODS)
    return of_normal, of_integers


def _period(problem: Problem, most: int, prime: int) -> int:
    """Return the number of distinct images in a data set, at most `most`.

    All images differ if there are at most `prime` of them, or if an image's outputs depend on other images. Otherwise,
    the result is the largest prime that is at most `most` and `prime` or, if the operation's rules don't allow such a
    prime, the largest size that they do allow. Raises DeviceError if no size is possible.
    """
    n, limit = problem.runtime_size, min(most, prime)
    if not problem.operation.independent:
        if n > most:
            raise DeviceError(
                f"{problem}: its reference exceeds {REFERENCE_BYTES >> 20} MB; "
                f"make {problem.operation.leading} at most {most}"
            )
        return n
    if n <= limit:
        return n
    primes = [size for size in range(limit, 1, -1) if all(size % d for d in range(2, size))]
    for size in (*primes, *range(limit, 0, -1)):
        with suppress(StudyError):
            return problem.with_runtime(size).runtime_size
    leading = problem.operation.leading
    raise DeviceError(f"{problem}: its reference covers {leading} up to {limit}, and the rules allow no such {leading}")
