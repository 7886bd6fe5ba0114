"""Temporary."""

from __future__ import annotations

import numpy as np

from autotune.search.landscape import Landscape


def uniform(landscape: Landscape, rng: np.random.Generator) -> int:
    """A free config by chance, every family that has one left being equally likely."""
    families = [family for family in range(len(landscape.spaces)) if landscape.free_of(family).any()]
    family = families[int(rng.integers(len(families)))]
    return landscape.offsets[family] + int(rng.choice(np.flatnonzero(landscape.free_of(family))))


propose = uniform
