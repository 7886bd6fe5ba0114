"""Which layer of a network gets the next evaluation, and which layers learn from which others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.distance import layer_distance
from autotune.problem import Problem
from autotune.search.warm_start import NEAR

LEARNT = 10
"""Evaluations of a layer after which similar layers begin: its warm start, or the start of its search."""
DECAY = 1.5
"""Exponent with which the expected gain decreases with earlier evaluations: n^-1.5; docs/search.md
lists alternatives.
"""


def expected_gain_us(*, count: int, evaluated: int, best_us: float, floor_us: float | None) -> float:
    """The expected saving of the network's time by a layer's next evaluation, up to a factor that all layers share.

    A layer runs `count` times and takes `best_us` after this many evaluations, pending ones included; no kernel is
    faster than `floor_us`, if it is known. Not negative: a time below its floor means that the floor is wrong.
    """
    above_us = best_us - (floor_us or 0.0)
    return count * (above_us if above_us > 0 else best_us) / math.pow(max(1, evaluated), DECAY)


def leaders(problems: Sequence[Problem]) -> list[int | None]:
    """For each layer the position of an earlier layer that it learns from: the nearest that itself waits for none.

    None: no such layer is near enough for a warm start.
    """
    found: list[int | None] = []
    for problem in problems:
        first = [at for at, leader in enumerate(found) if leader is None]
        apart = {at: layer_distance(problem, problems[at]) for at in first}
        nearest = min(first, key=apart.__getitem__, default=None)
        found.append(nearest if nearest is not None and apart[nearest] <= NEAR else None)
    return found
