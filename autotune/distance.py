"""Distances between layers, devices and configs. The smaller the distance, the better tuning results carry over.

A distance is a sum of absolute differences of logarithms and of mismatches, so exp(-distance) can serve as a
covariance. At distance 0, the best config should be the same. The similarity is SAME for two layers with equal
properties, and 1 for two equal configs. Layer similarities are computed in integers, so that compiled dispatchers get
exactly the same values.
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
"""Distance between two devices with different compute capabilities. A factor of two in multiprocessors adds OTHER_SIZE.
"""
OTHER_SIZE = 0.5
SAME = 1 << 24
"""The similarity of two layers with equal properties."""
ORDER = 0.7
"""Share of a parameter's distance that depends on the order of its values."""


def layer_distance(one: Problem, other: Problem) -> float:
    """Return the distance between two layers: symmetric, 0 for the same problem, infinite for different operations.

    The operation's file declares the weights.
    """
    if one.operation.name != other.operation.name:
        return math.inf
    ours, theirs = one.names(), other.names()
    return sum(sum(part.apart(ours, theirs) for part in parts) for parts in one.operation.similarity)


def device_distance(one: DeviceInfo, other: DeviceInfo) -> float:
    """Return the distance between two devices: 0 for the same model, recorded or real, regardless of memory size."""
    apart = OTHER_SIZE * abs(math.log2(max(1, one.sm_count) / max(1, other.sm_count)))
    return apart + (OTHER_ARCHITECTURE if one.arch != other.arch else 0.0)


def property_similarity(powers: Sequence[int], values: Ints, known: Ints) -> Ints:
    """Return how similar each layer is to each known layer [layers, known], from SAME (equal) down to 1.

    `values` is [layers, properties], and `known` is [known, properties]. Each property multiplies the similarity by the
    ratio of its smaller to its larger value, raised to the property's power.
    """
    similar = np.full((len(values), len(known)), SAME, dtype=np.int64)
    for position, power in enumerate(powers):
        one, other = np.maximum(1, values[:, position, None]), np.maximum(1, known[None, :, position])
        for _ in range(power):
            similar = similar * np.minimum(one, other) // np.maximum(one, other)
    return np.maximum(1, similar)


def config_similarity(params: Mapping[str, Sequence[Param]], configs: Sequence[Config]) -> Floats:
    """Return the similarity of each pair of configs [configs, configs]: exp(-distance), or 0 if their families differ.

    `params` lists each family's parameters. A parameter adds up to 1 to the distance, and the share ORDER of that
    depends on the order of its values.
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
