"""How similar two layers, two devices and two configs are: what the results of one say of the other.

A distance is a sum over what differs; 0 means that a kernel's best config should be the same. It is a sum of absolute
differences of logarithms and of mismatches, so exp(-distance) can serve as a covariance. A similarity is 1, or SAME,
for the same. That of layers by their properties is in whole numbers, so that a compiled dispatcher comes to the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotune.devices.device import DeviceInfo
from autotune.family.template import Param
from autotune.problem import Conv2dProblem
from autotune.trial import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIZES: Mapping[str, float] = {"depth": 1.0, "k": 1.0, "p": 0.5, "q": 0.5, "r": 0.5, "s": 0.5, "n": 0.1}
"""Weight of a factor of two between two layers' sizes; depth is the channels of a group. n only changes how many blocks
there are: kernels take it at run time."""
MISMATCHES: Mapping[str, float] = {
    "stride_h": 1.0,
    "stride_w": 1.0,
    "dilation_h": 0.5,
    "dilation_w": 0.5,
    "pad_h": 0.1,
    "pad_w": 0.1,
    "dtype": 2.0,
    "layout": 4.0,
    "epilogue": 0.2,
}
"""Weight of a difference in what is not a size."""
GROUPED = 4.0
"""Weight of one layer being depthwise, or in groups, and the other not."""
OTHER_ARCHITECTURE = 1.0
"""Weight of another compute capability; a factor of two in multiprocessors weighs OTHER_SIZE."""
OTHER_SIZE = 0.5
SAME = 1 << 24
"""The similarity of a layer's properties to themselves."""
ORDER = 0.7
"""Share of a parameter's distance between two configs that grows with how far apart its values stand."""


def layer_distance(one: Conv2dProblem, other: Conv2dProblem) -> float:
    """How far apart two layers are; symmetric, 0 for the same problem."""
    sizes = sum(weight * abs(math.log2(_size(one, name) / _size(other, name))) for name, weight in SIZES.items())
    mismatches = sum(weight for name, weight in MISMATCHES.items() if getattr(one, name) != getattr(other, name))
    return sizes + mismatches + (GROUPED if _grouping(one) != _grouping(other) else 0.0)


def device_distance(one: DeviceInfo, other: DeviceInfo) -> float:
    """How far apart two devices are; 0 for the same model, whatever its memory, recorded or real."""
    apart = OTHER_SIZE * abs(math.log2(max(1, one.sm_count) / max(1, other.sm_count)))
    return apart + (OTHER_ARCHITECTURE if one.arch != other.arch else 0.0)


def property_similarity(powers: Sequence[int], values: Ints, known: Ints) -> Ints:
    """[layers, known]; SAME for the same, less the more their properties' values differ, and at least 1.

    Values are [layers, properties] and [known, properties]. Two layers are as similar as the smaller of each property's
    values over the larger, to the property's power.
    """
    similar = np.full((len(values), len(known)), SAME, dtype=np.int64)
    for position, power in enumerate(powers):
        one, other = np.maximum(1, values[:, position, None]), np.maximum(1, known[None, :, position])
        for _ in range(power):
            similar = similar * np.minimum(one, other) // np.maximum(one, other)
    return np.maximum(1, similar)


def config_similarity(params: Mapping[str, Sequence[Param]], configs: Sequence[Config]) -> Floats:
    """[configs, configs]; exp(-distance), 0 across families, given the parameters of each family.

    A parameter adds up to 1 to a distance, ORDER of it by how far apart its values stand.
    """
    similar = np.zeros((len(configs), len(configs)))
    for family in {config.template for config in configs}:
        own = np.array([number for number, config in enumerate(configs) if config.template == family])
        places = []
        for param in params[family]:
            ordered = sorted(param.values, key=lambda value: (isinstance(value, str), value))
            scale = max(1, len(ordered) - 1)
            places.append([ordered.index(configs[number].values()[param.name]) / scale for number in own])
        apart = np.abs(np.array(places)[:, :, None] - np.array(places)[:, None, :])
        similar[np.ix_(own, own)] = np.exp(-(ORDER * apart + (1 - ORDER) * (apart > 0)).sum(axis=0))
    return similar


def differences(one: Conv2dProblem, other: Conv2dProblem) -> str:
    """What differs, as words: `k 12 -> 16, r 5 -> 7`; empty for the same problem."""
    names = ("n", "c", "h", "w", "k", "r", "s", *MISMATCHES, "groups")
    return ", ".join(
        f"{name} {getattr(one, name)} -> {getattr(other, name)}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    )


def _size(problem: Conv2dProblem, name: str) -> int:
    return problem.c // problem.groups if name == "depth" else int(getattr(problem, name))


def _grouping(problem: Conv2dProblem) -> str:
    if problem.groups == 1:
        return "dense"
    return "depthwise" if problem.groups == problem.c else "grouped"
