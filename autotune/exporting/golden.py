"""The self-test's golden values: some outputs of a layer in double precision, on data that any machine makes alike.

The data are those of `templates/export/selftest.cpp`, which computes every output itself and checks that against these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.measurement.network import stored
from autotune.problem import Conv2dProblem

SAMPLES = 256  # outputs of each data set
MOST_PRODUCTS = 200_000_000  # of the self-test's own reference, about a second
_IMAGES = 3  # the first number of images that no power of two divides

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Golden:
    """Outputs of one layer: flat indices into y, and their values on both data sets."""

    n: int
    indices: tuple[int, ...]
    integers: tuple[float, ...]
    normal: tuple[float, ...]


def golden(problem: Conv2dProblem) -> Golden:
    """The golden values of a layer's shape, for a few images whatever its n."""
    products = problem.output.elements // problem.runtime_size * problem.reduction
    small = problem.with_runtime(max(1, min(_IMAGES, MOST_PRODUCTS // products)))
    indices = _indices(small.output.elements)
    values = [_outputs(small, indices, data_of(small, integers=integers)) for integers in (True, False)]
    return Golden(small.n, tuple(indices.tolist()), tuple(values[0].tolist()), tuple(values[1].tolist()))


def data_of(problem: Conv2dProblem, *, integers: bool) -> dict[str, Doubles]:
    """The inputs, flat and as stored: small integers, or close to normal and rounded to the problem's dtype."""
    found: dict[str, Doubles] = {}
    for array in problem.inputs:
        seed, count = problem.operation.seed(array.name), array.elements
        if integers:
            span = np.uint64(array.most - array.least + 1)
            found[array.name] = array.least + ((_mixed(seed, count) >> np.uint64(33)) % span).astype(np.float64)
        else:
            found[array.name] = stored(_normal(seed, count), array.dtype).astype(np.float64)
    return found


def _mixed(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """splitmix64 of seed << 40 and what follows."""
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


def _indices(elements: int) -> npt.NDArray[np.int64]:
    """The first and last outputs and others between them, evenly strewn."""
    if elements <= SAMPLES:
        return np.arange(elements)
    return np.unique(np.linspace(0, elements - 1, SAMPLES).astype(np.int64))


def _outputs(problem: Conv2dProblem, indices: npt.NDArray[np.int64], inputs: Mapping[str, Doubles]) -> Doubles:
    """These outputs of the convolution, in double precision."""
    p = problem
    nhwc = p.layout == "nhwc"
    if nhwc:
        n, row, column, k = np.unravel_index(indices, (p.n, p.p, p.q, p.k))
        images = inputs["x"].reshape(p.n, p.h, p.w, p.c).transpose(0, 3, 1, 2)
        filters = inputs["w"].reshape(p.k, p.r, p.s, p.c // p.groups).transpose(0, 3, 1, 2)
    else:
        n, k, row, column = np.unravel_index(indices, (p.n, p.k, p.p, p.q))
        images = inputs["x"].reshape(p.n, p.c, p.h, p.w)
        filters = inputs["w"].reshape(p.k, p.c // p.groups, p.r, p.s)
    padded = np.pad(images, ((0, 0), (0, 0), (p.pad_h, p.pad_h), (p.pad_w, p.pad_w)))
    first = k // (p.k // p.groups) * (p.c // p.groups)
    sums = inputs["bias"][k] if "bias" in inputs else np.zeros(len(indices))
    if "z" in inputs:
        sums += inputs["z"][indices]
    for c in range(p.c // p.groups):
        for r in range(p.r):
            for s in range(p.s):
                at = (n, first + c, row * p.stride_h + r * p.dilation_h, column * p.stride_w + s * p.dilation_w)
                sums += padded[at] * filters[k, c, r, s]
    return _ACTIVATIONS[p.activation](sums)


def _sigmoid(sums: Doubles) -> Doubles:
    values: Doubles = 1.0 / (1.0 + np.exp(-sums))
    return values


def _phi(sums: Doubles) -> Doubles:
    """The normal distribution's cumulative function."""
    return np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in sums])


_ACTIVATIONS: Mapping[str, Callable[[Doubles], Doubles]] = {
    "identity": lambda sums: sums,
    "relu": lambda sums: np.maximum(sums, 0.0),
    "relu6": lambda sums: np.clip(sums, 0.0, 6.0),
    "silu": lambda sums: sums * _sigmoid(sums),
    "hardswish": lambda sums: sums * np.clip(sums + 3.0, 0.0, 6.0) / 6.0,
    "sigmoid": _sigmoid,
    "gelu": lambda sums: sums * _phi(sums),
    "gelu_tanh": lambda sums: 0.5 * sums * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (sums + 0.044715 * sums**3))),
    "leaky_relu": lambda sums: np.where(sums < 0.0, 0.01 * sums, sums),
}
