"""Compute the self-test's golden values: some of a layer's outputs in double precision.

The inputs are generated in the same way on every machine, including by `templates/export/selftest.cpp`. The self-test
computes outputs itself, all of them if that is quick, and compares them with the golden values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from autotune.autotune_runtime.activations import BY_WORD, activated
from autotune.measurement.numpy_reference import FUNCTIONS, given_data, in_numpy, numpy_reference
from autotune.measurement.storage import stored
from autotune.operation.declarations import DRAWN, Array, Fill
from autotune.operation.registry import CONV, CONV2D
from autotune.problem import Problem, valid_problems

SAMPLES = 256  # outputs per data set, if the self-test's own reference computes all others
ALL_SAMPLES = 1024  # outputs per data set, if only these are compared
MOST_PRODUCTS = 200_000_000  # products that the self-test's own reference computes in about a second
_UNITS = 3  # smallest run-time size above 1 that is not a multiple of 2
_SIXTEENS = (144, 112, 64, 32, 16)  # further run-time sizes; the largest one up to the tuned size is tested
_QUICK_FLOPS, _QUICK_ELEMENTS = 50_000_000, 1 << 21  # limits for a further run-time size; both data sets take a second
_DRAWS, _RANDOM_FLOPS = 8, 5_000_000  # draws of random run-time sizes; the first that takes little time is tested
_NEXT_SIZES = 1000  # number of consecutive sizes to try
_OUTPUTS = 1003  # minimum number of outputs, if a unit of the run-time size has fewer outputs than a warp has threads
_WARP = 32
_CONVOLUTIONS = (CONV2D, CONV)  # operations whose C++ reference these golden values check

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """Some values of an output, for one data set and some run-time sizes, or all values of an input from data.py."""

    output: str
    sizes: tuple[int, ...]
    integers: bool
    indices: tuple[int, ...]
    """flat indices of the values"""
    values: tuple[float, ...]
    units: tuple[float, ...]
    """units of the values' errors; 0 if the self-test's own reference computes them"""
    products: tuple[float, ...]
    """number of products in each sum; 0 if the self-test's own reference counts them"""


@dataclass(frozen=True, slots=True)
class Golden:
    """The test data for a kernel's shape, independent of the tuned run-time sizes."""

    sizes: tuple[int, ...]
    """small run-time sizes that use every part of a kernel"""
    least: tuple[int, ...]
    more_sizes: tuple[tuple[int, ...], ...]
    """other run-time sizes, up to the tuned ones, that take little time"""
    most_outputs: int
    """number of outputs that the self-test's own reference computes"""
    sets: tuple[Samples, ...]


def golden(problem: Problem, seed: int) -> Golden:
    """Compute the golden values for a problem's shape at several run-time sizes.

    These are small sizes that use every part of a kernel, the smallest sizes, and a few others. If the operation's
    reference is in C++, only convolutions have golden values, because this module contains a second reference for them.
    Raises TemplateError if a NumPy reference fails.
    """
    few, least = self_test_problems(problem)
    more = tuple(each for each in _more_problems(problem, few, seed) if each not in (few, least))
    sizes = few.runtime_sizes, least.runtime_sizes, tuple(each.runtime_sizes for each in more)
    most = max(ALL_SAMPLES, MOST_PRODUCTS // problem.reduction)
    if problem.operation.name in _CONVOLUTIONS:
        sets = (_of_convolution(few, integers=each) for each in (True, False))
        return Golden(*sizes, most, tuple(sets))
    if not in_numpy(problem.operation):
        return Golden(*sizes, most, ())
    samples = (
        some
        for each in dict.fromkeys((few, least, *more))
        for integers in (True, False)
        for some in _of_numpy(each, integers=integers)
    )
    return Golden(*sizes, most, tuple(samples))


def self_test_problems(problem: Problem) -> tuple[Problem, Problem]:
    """Return the problem at small run-time sizes that use every part of a kernel, and at the smallest sizes."""
    few = least = problem
    for place in range(1, len(problem.runtime_sizes)):
        few = _first_valid(few, place, _UNITS)
    a_unit = max(1, sum(output.elements for output in few.outputs) // few.runtime_size)
    units = max(1, min(_UNITS, MOST_PRODUCTS // (a_unit * few.reduction)))
    wanted = units if a_unit >= _WARP else max(units, -(-_OUTPUTS // a_unit))
    for place in range(len(problem.runtime_sizes)):
        least = _first_valid(least, place, 1)
    return _first_valid(few, 0, wanted), least


def _more_problems(problem: Problem, few: Problem, seed: int) -> tuple[Problem, ...]:
    """Return the problem at further run-time sizes for which a CPU can run the kernel quickly.

    Each run-time size in turn is set to the largest of _SIXTEENS up to the tuned size, and to the tuned size. These are
    followed by all tuned sizes together and random sizes below them.
    """
    found = []
    for place, tuned in enumerate(problem.runtime_sizes):
        for sizes in (_SIXTEENS, (tuned,)):
            varied = (partial(few.with_runtime_at, place, size) for size in sizes if size <= tuned)
            found += [*itertools.islice(filter(_is_quick, valid_problems(varied)), 1)]
    random = np.random.default_rng(seed)
    draws = (np.array(problem.runtime_sizes) ** random.random() for _ in range(_DRAWS))
    drawn = valid_problems(partial(problem.with_runtime, *map(int, sizes)) for sizes in draws)
    cheap = itertools.islice((each for each in drawn if each.flops <= _RANDOM_FLOPS and _is_quick(each)), 1)
    return tuple(dict.fromkeys((*found, *filter(_is_quick, (problem,)), *cheap)))


def _is_quick(problem: Problem) -> bool:
    return problem.flops <= _QUICK_FLOPS and sum(array.elements for array in problem.arrays) <= _QUICK_ELEMENTS


def _first_valid(problem: Problem, place: int, least: int) -> Problem:
    """Return the problem with the smallest valid value of at least `least` for the run-time size at `place`.

    The next _NEXT_SIZES numbers, powers of two, and the problem's own size are tried.
    """
    most = problem.runtime_sizes[place]
    powers = (1 << power for power in range(least.bit_length(), most.bit_length()))
    sizes = (*range(least, min(least + _NEXT_SIZES, most)), *(power for power in powers if power < most))
    own = max(least, most) if problem.operation.name == CONV2D else most
    return next(valid_problems(partial(problem.with_runtime_at, place, size) for size in (*sizes, own)), problem)


def _of_convolution(problem: Problem, *, integers: bool) -> Samples:
    indices = _indices(problem.output.elements, SAMPLES)
    values = _outputs(problem, indices, data_of(problem, integers=integers))
    return Samples(
        problem.output.name,
        problem.runtime_sizes,
        integers,
        tuple(indices.tolist()),
        tuple(values.tolist()),
        *[(0.0,) * len(indices)] * 2,
    )


def _of_numpy(problem: Problem, *, integers: bool) -> Iterator[Samples]:
    sizes = problem.runtime_sizes
    for name, values in given_data(problem, int(integers)).items():  # stored for the self-test
        zeros = (0.0,) * len(values)
        yield Samples(name, sizes, integers, tuple(range(len(values))), tuple(values.tolist()), zeros, zeros)
    for expected in numpy_reference(problem, data_of(problem, integers=integers)):
        indices = _indices(expected.output.elements, ALL_SAMPLES)
        found = (tuple(each[indices].tolist()) for each in (expected.value, expected.unit, expected.products))
        yield Samples(expected.output.name, sizes, integers, tuple(indices.tolist()), *found)


def data_of(problem: Problem, *, integers: bool) -> dict[str, Doubles]:
    """Generate the inputs, flat and rounded to their storage types.

    Unless the operation declares other data, they are small integers or close to normally distributed.
    """
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
            return stored(least + ((_mixed(seed, count) >> np.uint64(11)) % span).astype(np.float64), array.dtype)


def _mixed(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return splitmix64 of seed << 40 and of the integers that follow it."""
    value = np.arange(count, dtype=np.uint64) + np.uint64((seed << 40) + 0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _normal(seed: int, count: int) -> Doubles:
    """Return sums of twelve uniform 16-bit numbers, scaled to mean 0 and variance 1."""
    random = _mixed(seed, 3 * count)
    parts = [(random >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in range(0, 64, 16)]
    sums = np.sum(parts, axis=0).astype(np.int64).reshape(count, 3).sum(axis=1)
    values: Doubles = (sums - 12 * 65535 // 2) / 65536.0
    return values


def _indices(elements: int, most: int) -> npt.NDArray[np.int64]:
    """Return the indices of the first and last output, and of others at regular intervals."""
    if elements <= most:
        return np.arange(elements)
    return np.unique(np.linspace(0, elements - 1, most).astype(np.int64))


def _outputs(problem: Problem, indices: npt.NDArray[np.int64], inputs: Mapping[str, Doubles]) -> Doubles:
    """Compute the outputs of a convolution at these flat indices, in double precision."""
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
    if "scale" in inputs:
        of_image = (p["n"], p["c"], 1, 1, 1)
        images = images * inputs["scale"].reshape(of_image)
        images = images + inputs["shift"].reshape(of_image) if "shift" in inputs else images
        word = str(names["prologue_activation"])
        images = activated(word, images, FUNCTIONS) if word in BY_WORD else images
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
