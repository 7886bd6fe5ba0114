"""store -> search: the configs that a layer's search starts with, from what is known of like layers and like devices.

A Gaussian process over (config, layer, device) for each family predicts how far behind a layer's best a config is, from
the fastest trials of the nearest layers and devices. The feasible configs with the smallest prediction come first. A
config that is feasible here as it stands on a near layer predicts best; one that is not lends its neighbours its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.device import DeviceInfo
from autotune.nearness import device_distance, layer_distance
from autotune.problem import Conv2dProblem
from autotune.space import SearchSpace
from autotune.store import Leader
from autotune.trial import Config

Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]

MOST = 10
"""Configs that a search starts with, at most."""
NEAREST = 8
"""Pairs of layer and device that are looked at."""
NEAR = 4.0
"""Distance of the nearest layer beyond which there is no warm start."""
FARTHEST = 6.0
"""Distance beyond which a layer says nothing, where another is near."""
CAP = 1.0
"""Log of the largest slowdown that is told apart: the prediction where nothing is known."""
DECAY = 0.5
"""How fast a trial's word fades with its layer's and device's distance."""
NOISE = 0.05
"""Variance of a prediction's error that no distance explains, relative to the signal's."""
ORDER = 0.8
"""Share of a parameter's distance that comes from the order of its values; the rest from their being different."""
WEIGHT = 2.0
"""Distance of two configs that differ in everything, over the root of the number of parameters."""
AGAIN = 0.05
"""What each config already taken from a family costs its next one: a family that misleads must not fill the list."""
NEIGHBOURS = 100
"""Feasible configs nearest to each of the BEST sources that are judged."""
BEST = 30


@dataclass(frozen=True, slots=True)
class Place:
    """A layer on a device that was tuned before, with its fastest trials."""

    leaders: tuple[Leader, ...]
    distance: float
    """from the layer and device that are to be tuned"""

    @property
    def name(self) -> str:
        """`study.layer on DEVICE`."""
        return f"{self.leaders[0].name} on {self.leaders[0].device.name}"

    def slowdowns(self) -> list[tuple[Config, float]]:
        """Configs with the log of their time over the best one's, at most CAP."""
        best_us = min(leader.median_us for leader in self.leaders)
        return [(leader.config, min(CAP, math.log(leader.median_us / best_us))) for leader in self.leaders]

    def apart(self, other: Place) -> float:
        """The distance of two places."""
        one, two = self.leaders[0], other.leaders[0]
        return layer_distance(one.problem, two.problem) + device_distance(one.device, two.device)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a search starts with, and where that comes from."""

    configs: tuple[Config, ...]
    layers: tuple[tuple[str, float], ...]
    """`study.layer on DEVICE` to its distance, nearest first"""


def warm_start(
    problem: Conv2dProblem, device: DeviceInfo, leaders: Sequence[Leader], spaces: Sequence[SearchSpace], most: int
) -> WarmStart:
    """Up to `most` feasible configs, the most promising first; none where nothing near was ever tuned."""
    places = near(problem, device, leaders)
    offers = [offer for space in spaces if len(space.rows) and space.params for offer in _offers(space, places)]
    taken: dict[str, int] = {}
    configs: list[Config] = []
    while offers and len(configs) < most:
        best = min(offers, key=lambda offer: (offer[0] + AGAIN * taken.get(offer[1].template, 0), str(offer[1])))
        offers.remove(best)
        configs.append(best[1])
        taken[best[1].template] = taken.get(best[1].template, 0) + 1
    return WarmStart(tuple(configs), tuple((place.name, place.distance) for place in places) if configs else ())


def near(problem: Conv2dProblem, device: DeviceInfo, leaders: Sequence[Leader]) -> list[Place]:
    """The nearest layers and devices with their trials, nearest first; none where even the nearest is far."""
    groups: dict[tuple[Conv2dProblem, tuple[str, str, int, int, int]], list[Leader]] = {}
    for leader in leaders:
        groups.setdefault((leader.problem, leader.device.identity), []).append(leader)
    places = [
        Place(tuple(found), layer_distance(problem, found[0].problem) + device_distance(device, found[0].device))
        for found in groups.values()
    ]
    places = sorted((place for place in places if place.distance <= FARTHEST), key=lambda place: place.distance)
    return places[:NEAREST] if places and places[0].distance <= NEAR else []


def _offers(space: SearchSpace, places: Sequence[Place]) -> list[tuple[float, Config]]:
    """A family's feasible configs worth judging, with their predicted slowdown; none where it was never good."""
    code = _Code(space)
    sources = [
        (number, config, slowdown)
        for number, place in enumerate(places)
        for config, slowdown in place.slowdowns()
        if code.knows(config)
    ]
    slowdowns = np.array([slowdown for _, _, slowdown in sources])
    if not sources or slowdowns.min() >= CAP:
        return []
    of = np.array([number for number, _, _ in sources])
    distances = np.array([place.distance for place in places])
    between = np.array([[one.apart(other) for other in places] for one in places])
    known = code.vectors(np.stack([code.positions(config) for _, config, _ in sources]))
    rows = code.vectors(code.rows)
    best = np.argsort(slowdowns + DECAY * distances[of], kind="stable")[:BEST]
    candidates = _closest(rows, known[best])
    covariance = np.exp(-_squares(known, known) - DECAY * between[np.ix_(of, of)]) + NOISE * np.eye(len(of))
    weights = np.linalg.solve(covariance, slowdowns - CAP)
    nearness = np.exp(-_squares(rows[candidates], known) - DECAY * distances[of][None, :])
    predicted = CAP + nearness @ weights
    return [(float(value), space.config(int(row))) for value, row in zip(predicted, candidates, strict=True)]


class _Code:
    """Configs of a family as vectors whose squared distance is the sum of their parameters' distances.

    A position in an ordered list becomes a thermometer code, a difference a one-hot code. Positions are the header's,
    so that a study which narrows the values changes nothing.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._family = space.template
        self._positions = {
            param.name: {value: i for i, value in enumerate(param.values)} for param in space.bound.template.params
        }
        narrowed = [np.array([self._positions[param.name][value] for value in param.values]) for param in space.params]
        self.rows = np.stack([table[space.rows[:, column]] for column, table in enumerate(narrowed)], axis=1)
        """positions of the feasible configs"""
        scale = WEIGHT / math.sqrt(len(narrowed))
        self._tables: list[Singles] = []
        for positions in self._positions.values():
            count = len(positions)
            below = np.arange(count - 1)[None, :] < np.arange(count)[:, None]
            thermometer = below * math.sqrt(scale * ORDER / max(1, count - 1))
            table = np.hstack([thermometer, np.eye(count) * math.sqrt(scale * (1 - ORDER) / 2)])
            self._tables.append(table.astype(np.float32))  # of up to 200,000 configs

    def knows(self, config: Config) -> bool:
        """Whether a config is of this family as it is now."""
        values = config.values()
        return (
            config.template == self._family
            and values.keys() == self._positions.keys()
            and all(values[name] in positions for name, positions in self._positions.items())
        )

    def positions(self, config: Config) -> Ints:
        """The positions of a config's values."""
        values = config.values()
        return np.array([positions[values[name]] for name, positions in self._positions.items()])

    def vectors(self, positions: Ints) -> Singles:
        """The vectors of configs given by their positions."""
        return np.hstack([table[positions[:, column]] for column, table in enumerate(self._tables)])


def _closest(rows: Singles, to: Singles) -> Ints:
    """Which rows are among the NEIGHBOURS closest to any of some vectors."""
    most = min(NEIGHBOURS, len(rows))
    apart = _squares(to, rows)
    return np.unique(np.argpartition(apart, most - 1, axis=1)[:, :most])


def _squares(left: Singles, right: Singles) -> Singles:
    """Squared distances [len(left), len(right)]."""
    lengths = np.einsum("ij,ij->i", left, left)[:, None] + np.einsum("ij,ij->i", right, right)[None, :]
    return np.asarray(np.maximum(lengths - 2 * left @ right.T, 0))
