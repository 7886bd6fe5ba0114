"""How alike two layers, and two devices, are: what decides whether the best kernel of one is worth trying on the other.

A distance is a sum over what differs; 0 means that a kernel's best config should be the same. It is a sum of absolute
differences of logarithms and of mismatches, so exp(-distance) can serve as a covariance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.devices.device import DeviceInfo
from autotune.problem import Conv2dProblem

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


def layer_distance(one: Conv2dProblem, other: Conv2dProblem) -> float:
    """How far apart two layers are; symmetric, 0 for the same problem."""
    sizes = sum(weight * abs(math.log2(_size(one, name) / _size(other, name))) for name, weight in SIZES.items())
    mismatches = sum(weight for name, weight in MISMATCHES.items() if getattr(one, name) != getattr(other, name))
    return sizes + mismatches + (GROUPED if _grouping(one) != _grouping(other) else 0.0)


def device_distance(one: DeviceInfo, other: DeviceInfo) -> float:
    """How far apart two devices are; 0 for the same model, whatever its memory, recorded or real."""
    apart = OTHER_SIZE * abs(math.log2(max(1, one.sm_count) / max(1, other.sm_count)))
    return apart + (OTHER_ARCHITECTURE if one.arch != other.arch else 0.0)


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
