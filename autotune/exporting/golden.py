"""The self-test's golden values: some outputs of a layer in double precision, on data that every machine generates
alike.

The data are those of `templates/export/selftest.cpp`. It computes outputs itself, all of them if that is quick, and
compares them with the golden values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.autotune_runtime.activations import BY_WORD, activated
from autotune.errors import StudyError
from autotune.measurement.numpy_reference import FUNCTIONS, given_data, in_numpy, numpy_reference
from autotune.measurement.storage import stored
from autotune.operation.declarations import DRAWN, Array, Fill
from autotune.operation.registry import CONV, CONV2D
from autotune.problem import Problem

SAMPLES = 256  # outputs of each data set, if the self-test's own reference computes the others
ALL_SAMPLES = 1024  # the same if only these are compared
MOST_PRODUCTS = 200_000_000  # FLOP of the self-test's own reference, about a second
_UNITS = 3  # the first run-time size that is not divisible by a power of two
_SIXTEENS = (112, 64, 32, 16)  # further run-time sizes, of which the largest up to the tuned size is tested
_QUICK_FLOPS, _QUICK_ELEMENTS = 50_000_000, 1 << 21  # of a further run-time size; both data sets take a second
_NEXT_SIZES = 1000  # number of sizes to try
_OUTPUTS = 1003  # minimum, if a unit of the run-time size has fewer outputs than a warp has threads
_WARP = 32
_CONVOLUTIONS = (CONV2D, CONV)  # operations whose C++ reference these golden values check

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """Some values of one output at one run-time size, on one of the two data sets, or all of an input of data.py."""

    output: str
    n: int
    integers: bool
    indices: tuple[int, ...]
    """flat indices"""
    values: tuple[float, ...]
    units: tuple[float, ...]
    """the units of their errors; 0 if the self-test's own reference computes them"""
    products: tuple[float, ...]
    """how many products each sums; 0 if the self-test's own reference counts them"""


@dataclass(frozen=True, slots=True)
class Golden:
    """The test data of a kernel's shape, whatever size it was tuned for."""

    n: int
    least_n: int
    more_n: tuple[int, ...]
    """others, up to the tuned size, that take little time"""
    most_outputs: int
    """number of outputs that the self-test's own reference computes"""
    sets: tuple[Samples, ...]


def golden(problem: Problem) -> Golden:
    """The golden values of a problem's shape, for a small but sufficient run-time size, and the smallest size.

    There are none if the operation's reference is in C++, except for convolutions, which have another reference here.
    Raises TemplateError if a reference in numpy fails.
    """
    n, least = self_test_sizes(problem)
    more = tuple(size for size in _more_sizes(problem) if size not in (n, least))
    most = max(ALL_SAMPLES, MOST_PRODUCTS // problem.reduction)
    if problem.operation.name in _CONVOLUTIONS:
        sets = (_of_convolution(problem.with_runtime(n), integers=each) for each in (True, False))
        return Golden(n, least, more, most, tuple(sets))
    if not in_numpy(problem.operation):
        return Golden(n, least, more, most, ())
    samples = (
        some
        for size in dict.fromkeys((n, least, *more))
        for integers in (True, False)
        for some in _of_numpy(problem.with_runtime(size), integers=integers)
    )
    return Golden(n, least, more, most, tuple(samples))


def self_test_sizes(problem: Problem) -> tuple[int, int]:
    """The run-time sizes for testing a kernel: a small but sufficient one, and the smallest."""
    a_unit = max(1, sum(output.elements for output in problem.outputs) // problem.runtime_size)
    few = max(1, min(_UNITS, MOST_PRODUCTS // (a_unit * problem.reduction)))
    wanted = few if a_unit >= _WARP else max(few, -(-_OUTPUTS // a_unit))
    return _size_from(problem, wanted), _size_from(problem, 1)


def _more_sizes(problem: Problem) -> tuple[int, ...]:
    """A multiple of 16, beyond 100 where there is one, and the tuned size, if a CPU runs the kernel there in time."""
    found = []
    for sizes in (_SIXTEENS, (problem.runtime_size,)):
        for size in sizes:
            with suppress(StudyError):
                each = problem.with_runtime(min(size, problem.runtime_size))
                elements = sum(array.elements for array in each.arrays)
                if each.runtime_size == size and each.flops <= _QUICK_FLOPS and elements <= _QUICK_ELEMENTS:
                    found.append(size)
                    break
    return tuple(dict.fromkeys(found))


def _size_from(problem: Problem, least: int) -> int:
    """The first run-time size from here on that makes a valid problem: one of the next few, a power of
    two, or its own.
    """
    most = problem.runtime_size
    powers = (1 << power for power in range(least.bit_length(), most.bit_length()))
    for size in (*range(least, min(least + _NEXT_SIZES, most)), *(power for power in powers if power < most)):
        with suppress(StudyError):
            return problem.with_runtime(size).runtime_size
    return max(least, problem.runtime_size) if problem.operation.name == CONV2D else problem.runtime_size


def _of_convolution(problem: Problem, *, integers: bool) -> Samples:
    indices = _indices(problem.output.elements, SAMPLES)
    values = _outputs(problem, indices, data_of(problem, integers=integers))
    return Samples(
        problem.output.name,
        problem.runtime_size,
        integers,
        tuple(indices.tolist()),
        tuple(values.tolist()),
        *[(0.0,) * len(indices)] * 2,
    )


def _of_numpy(problem: Problem, *, integers: bool) -> Iterator[Samples]:
    n = problem.runtime_size
    for name, values in given_data(problem, int(integers)).items():  # which the self-test takes from here
        zeros = (0.0,) * len(values)
        yield Samples(name, n, integers, tuple(range(len(values))), tuple(values.tolist()), zeros, zeros)
    for expected in numpy_reference(problem, data_of(problem, integers=integers)):
        indices = _indices(expected.output.elements, ALL_SAMPLES)
        found = (tuple(each[indices].tolist()) for each in (expected.value, expected.unit, expected.products))
        yield Samples(expected.output.name, n, integers, tuple(indices.tolist()), *found)


def data_of(problem: Problem, *, integers: bool) -> dict[str, Doubles]:
    """The inputs, flat and as stored: small integers, or close to normal and rounded, unless declared otherwise."""
    own = {
        array.name: _filled(array, problem.operation.seed(array.name), integers=integers)
        for array in problem.filled
        if array.fill != "data"
    }
    return {**own, **given_data(problem, int(integers))}


def _filled(array: Array, seed: int, *, integers: bool) -> Doubles:
    count = array.elements
    fill: Fill = "integers" if integers and array.fill in DRAWN else array.fill
    match fill:
        case "normal":
            return stored(_normal(seed, count), array.dtype)
        case "uniform":
            random = (_mixed(seed, count) >> np.uint64(40)).astype(np.float64) / 2.0**24
            return stored(array.low + (array.high - array.low) * random, array.dtype)
        case "range" | "permutation":
            length, step, shift = array.steps
            at = np.arange(count, dtype=np.int64)
            return stored((at % length * step + at // length % length * shift) % length, array.dtype)
        case "integers" | "ones" | "zeros" | "data":
            least, most = array.whole_bounds
            span = np.uint64(most - least + 1)
            return least + ((_mixed(seed, count) >> np.uint64(11)) % span).astype(np.float64)


def _mixed(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """splitmix64 of seed << 40 and the following integers."""
    value = np.arange(count, dtype=np.uint64) + np.uint64((seed << 40) + 0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _normal(seed: int, count: int) -> Doubles:
    """Sums of twelve uniform 16-bit numbers, of mean 0 and variance 1."""
    random = _mixed(seed, 3 * count)
    parts = [(random >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in range(0, 64, 16)]
    sums = np.sum(parts, axis=0).astype(np.int64).reshape(count, 3).sum(axis=1)
    values: Doubles = (sums - 12 * 65535 // 2) / 65536.0
    return values


def _indices(elements: int, most: int) -> npt.NDArray[np.int64]:
    """The first and last outputs, and others at regular distances."""
    if elements <= most:
        return np.arange(elements)
    return np.unique(np.linspace(0, elements - 1, most).astype(np.int64))


def _outputs(problem: Problem, indices: npt.NDArray[np.int64], inputs: Mapping[str, Doubles]) -> Doubles:
    """The given outputs of a convolution, in double precision."""
    names = problem.names()
    p = {name: value for name, value in names.items() if isinstance(value, int)}
    group = p["c"] // p["groups"]
    if names["layout"] == "nhwc":
        n, frame, row, column, k = np.unravel_index(indices, (p["n"], p["o"], p["p"], p["q"], p["k"]))
        images = inputs["x"].reshape(p["n"], p["d"], p["h"], p["w"], p["c"]).transpose(0, 4, 1, 2, 3)
        filters = inputs["w"].reshape(p["k"], p["t"], p["r"], p["s"], group).transpose(0, 4, 1, 2, 3)
    else:
        n, k, frame, row, column = np.unravel_index(indices, (p["n"], p["k"], p["o"], p["p"], p["q"]))
        images = inputs["x"].reshape(p["n"], p["c"], p["d"], p["h"], p["w"])
        filters = inputs["w"].reshape(p["k"], group, p["t"], p["r"], p["s"])
    if "cache" in inputs:
        in_front = inputs["cache"].reshape(problem.array("cache").shape)
        images = np.concatenate(
            (np.moveaxis(in_front, -1, 1) if names["layout"] == "nhwc" else in_front, images), axis=2
        )
    padded = np.pad(
        images,
        ((0, 0), (0, 0), (p["pad_d"], p["pad_d_end"]), (p["pad_h"], p["pad_h_end"]), (p["pad_w"], p["pad_w_end"])),
    )
    first = k // (p["k"] // p["groups"]) * group
    sums = inputs["bias"][k] if "bias" in inputs else np.zeros(len(indices))
    if "z" in inputs:
        sums += inputs["z"][indices]
    for c, t, r, s in np.ndindex(group, p["t"], p["r"], p["s"]):
        at = (
            frame * p["stride_d"] + t * p["dilation_d"],
            row * p["stride_h"] + r * p["dilation_h"],
            column * p["stride_w"] + s * p["dilation_w"],
        )
        sums += padded[n, first + c, *at] * filters[k, c, t, r, s]
    return activated(str(names["activation"]), sums, FUNCTIONS) if names["activation"] in BY_WORD else sums
