"""Distances between layers, devices and configs: the smaller the distance, the better tuning results carry over.

A distance is a sum of absolute differences of logarithms and of mismatches, so exp(-distance) can serve as a
covariance. At distance 0 the best config should be the same. The similarity of two layers with equal properties is
SAME; the similarity of two equal configs is 1. Similarities of layers are computed in integers, so that a compiled
dispatcher gets the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotune.devices.device import DeviceInfo
from autotune.family.template import Param
from autotune.problem import Problem
from autotune.trial import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OTHER_ARCHITECTURE = 1.0
"""Distance of two devices with different compute capabilities; a factor of two in multiprocessors adds OTHER_SIZE."""
OTHER_SIZE = 0.5
SAME = 1 << 24
"""The similarity of two layers with equal properties."""
ORDER = 0.7
"""Share of a parameter's distance that depends on the order of its values."""


def layer_distance(one: Problem, other: Problem) -> float:
    """Return the distance of two layers: symmetric, 0 for the same problem, infinite for different operations.

    The weights are declared in the operation's file.
    """
    if one.operation.name != other.operation.name:
        return math.inf
    ours, theirs = one.names(), other.names()
    return sum(sum(part.apart(ours, theirs) for part in parts) for parts in one.operation.similarity)


def device_distance(one: DeviceInfo, other: DeviceInfo) -> float:
    """Return the distance of two devices: 0 for the same model, whether recorded or real, with any amount of memory."""
    apart = OTHER_SIZE * abs(math.log2(max(1, one.sm_count) / max(1, other.sm_count)))
    return apart + (OTHER_ARCHITECTURE if one.arch != other.arch else 0.0)


def property_similarity(powers: Sequence[int], values: Ints, known: Ints) -> Ints:
    """Return the similarity of each layer to each known layer [layers, known]: from SAME for equal ones down to 1.

    `values` is [layers, properties], and `known` is [known, properties]. Each property multiplies the similarity by its
    smaller value divided by its larger value, to the power of the property.
    """
    similar = np.full((len(values), len(known)), SAME, dtype=np.int64)
    for position, power in enumerate(powers):
        one, other = np.maximum(1, values[:, position, None]), np.maximum(1, known[None, :, position])
        for _ in range(power):
            similar = similar * np.minimum(one, other) // np.maximum(one, other)
    return np.maximum(1, similar)


def config_similarity(params: Mapping[str, Sequence[Param]], configs: Sequence[Config]) -> Floats:
    """Return the similarity of each pair of configs [configs, configs]: exp(-distance), or 0 for different families.

    `params` lists the parameters of each family. Each parameter adds up to 1 to a distance; a share ORDER of that
    depends on the order of the parameter's values.
    """
    similar = np.zeros((len(configs), len(configs)))
    for family in {config.template for config in configs}:
        own = np.array([number for number, config in enumerate(configs) if config.template == family])
        places = []
        for param in params[family]:
            ordered = sorted(param.values, key=lambda value: (isinstance(value, str), value))
            scale = max(1, len(ordered) - 1)
            places.append([ordered.index(configs[number].params[param.name]) / scale for number in own])
        apart = np.abs(np.array(places)[:, :, None] - np.array(places)[:, None, :])
        similar[np.ix_(own, own)] = np.exp(-(ORDER * apart + (1 - ORDER) * (apart > 0)).sum(axis=0))
    return similar
