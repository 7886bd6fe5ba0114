"""The project's own sampler: expected improvement over feasible rows, with a model of the failures.

A family starts with configs that are far apart and leave little of the device idle. After that, a Gaussian process per
family models the log time, and another one the failures. The sampler scores random free rows and the neighbours of the
family's best, and proposes the row with the largest expected improvement times chance of success. All families share
one scale and one incumbent, so more promising families get more of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.search.one_hot import Features
from autotune.search.state import Floats, Ints, SearchState
from autotune.search.surrogate import MODELLED_FROM, Scale, Surrogate, log_expected_improvement, weighed

FIRST = 8
"""Number of configs evaluated before the model is used, if there is only one family."""
FIRST_OF_MANY = 3
"""Number of configs per family evaluated before the models are used, if there are several families. A model needs at
least this many.
"""
LOOK = 6
"""If there are several families, the number of configs that each one gets before the models alone decide which family
is next.
"""
LOOK_EVERY = 4
"""One in this many proposals goes to a family that has had fewer than LOOK configs."""
PATIENCE = 8.0
"""Maximum number of configs per family for which a much slower family waits before each of its own."""
BUSIEST = 0.3
"""Share of the free rows from which the first configs are chosen: the rows with the least padded outputs."""
SPREAD_FROM = 300
"""Number of random rows from which each first config is chosen: the row farthest from the earlier ones."""
DRAW = 1200
"""Number of random free rows scored for each proposal."""
ELITES = 6
"""Number of best rows whose neighbours are scored too."""
DRAW_NEAR_BEST = 400
"""Maximum number of scored rows that differ from the best in two parameters."""
BY_CHANCE = 0.001
"""Rows with a value that has always failed are left out if the probability of that happening by chance is below this.
"""


class Proposer:
    """Chooses the next config, based only on the search state and the given random numbers."""

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._families = [_Family(state, family) for family in range(len(state.families))]
        self._first = FIRST if len(self._families) == 1 else FIRST_OF_MANY
        self._unknown = True
        """whether some family had too few results for a model at the last ask; stays false once all have enough"""
        self.gain: float | None = None
        """expected gain of the latest proposal as a fraction of the best time, times its chance of success; None if no
        model chose it
        """

    def propose(self, rng: np.random.Generator) -> int:
        """Return the index of the next config to evaluate. Raises LookupError if there is none left."""
        state = self._state
        self.gain = None
        open_families = self._open_families()
        if not open_families:
            raise LookupError("every config was proposed")
        counts = self._counts()
        due = self._due(open_families, counts)
        unseen = [family for family in due if counts[family.number] < self._first]
        if unseen:
            return min(unseen, key=lambda family: counts[family.number]).first(rng)
        times = np.array([observation.value for observation in state.observations])
        correct = times[np.isfinite(times)]
        if not len(correct):
            return min(open_families, key=lambda family: counts[family.number]).farthest(rng)
        scale = Scale.of(correct, state.least)
        modelled = [family for family in open_families if family in due or family.observed >= MODELLED_FROM]
        proposals = [family.propose(scale, rng) for family in self._looked_at(modelled, due, counts)]
        best = max(proposals, key=lambda proposal: proposal.gain)
        self.gain = float(-np.expm1(-np.exp(best.gain) * scale.unit))
        return best.index

    def _due(self, families: list[_Family], counts: list[int]) -> list[_Family]:
        """Return the families that may get another config, whatever their models predict. A much slower family waits.

        If a family's best takes r times as long as the overall best, it waits after its n-th config until the families
        have n * (r - 1) configs each on average. A family with a slow default therefore gets few evaluations. If the
        values aren't log times, no family waits.
        """
        if self._state.least is None or len(families) == 1:
            return families
        best = np.full(len(self._families), np.inf)
        for observation in self._state.observations:
            family = self._state.family_of(observation.index)
            best[family] = min(best[family], observation.value)
        log_times = best[[family.number for family in families]]
        observed = np.isfinite(log_times)
        if not observed.any():
            return families
        behind = np.where(observed, np.expm1(np.where(observed, log_times, 0.0) - log_times.min()), 0.0)
        waits = np.minimum(behind, PATIENCE) * len(families) * np.array([counts[each.number] for each in families])
        return [family for family, least in zip(families, waits, strict=True) if sum(counts) >= least]

    def _looked_at(self, families: list[_Family], due: list[_Family], counts: list[int]) -> list[_Family]:
        """Return which families to ask for a proposal: usually all of them, sometimes just the one with the fewest
        configs.
        """
        least = min(due, key=lambda family: counts[family.number])
        now = len(self._families) > 1 and sum(counts) % LOOK_EVERY == 0 and counts[least.number] < LOOK
        return [least] if now else families

    @property
    def is_random(self) -> bool:
        """Whether all first configs have been asked for, but some family has too few results for a model."""
        counts = self._counts()
        families = self._due(self._open_families(), counts)
        self._unknown = self._unknown and any(family.observed < MODELLED_FROM for family in families)
        return self._unknown and all(counts[family.number] >= self._first for family in families)

    def _open_families(self) -> list[_Family]:
        """Return the families that still have a free config."""
        return [family for family in self._families if self._state.free_of(family.number).any()]

    def _counts(self) -> list[int]:
        """Return the number of configs of each family that were asked for or told."""
        proposed = [observation.index for observation in self._state.observations] + self._state.pending
        return [sum(1 for index in proposed if self._state.family_of(index) == f.number) for f in self._families]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A family's best proposal: the config's index and the log of its expected gain."""

    index: int
    gain: float


class _Family:
    """A family's models and their proposals."""

    def __init__(self, state: SearchState, number: int) -> None:
        self.number = number
        self._state = state
        self._offset = state.offsets[number]
        self._padded_work = state.families[number].padded_work
        self._features = Features(state.families[number])
        self._near = state.neighbourhood(number)
        self._surrogate = Surrogate(self._features.metric)

    @property
    def observed(self) -> int:
        """The number of configs with a known outcome."""
        return len(self._observed()[0])

    def first(self, rng: np.random.Generator) -> int:
        """Draw free rows that leave little of the device idle, and return the one farthest from all rows asked for."""
        free = self._free()
        if self._padded_work is not None:
            of_free = self._padded_work[free]
            free = free[of_free <= np.quantile(of_free, BUSIEST)]
        return self._farthest(free, rng)

    def farthest(self, rng: np.random.Generator) -> int:
        """Draw free rows and return the one farthest from all rows asked for."""
        return self._farthest(self._free(), rng)

    def _farthest(self, rows: Ints, rng: np.random.Generator) -> int:
        proposed = self._proposed()
        draw = rows[rng.integers(len(rows), size=SPREAD_FROM)]
        if not len(proposed) or not self._features.width:
            return self._offset + int(draw[0])
        nearest = self._features.apart(draw, proposed).min(axis=1)
        return self._offset + int(draw[int(np.argmax(nearest))])

    def propose(self, scale: Scale, rng: np.random.Generator) -> Proposal:
        """Propose the row with the largest expected improvement times chance of success."""
        rows, log_times = self._observed()
        correct = np.isfinite(log_times)
        good = rows[correct]
        draw = self._draw(good, log_times[correct], rng)
        asked = self._features.codes(draw)
        if len(good) >= MODELLED_FROM:
            pending = self._features.codes(self._pending())
            model = self._surrogate.values(self._features.codes(good), log_times[correct], scale, pending)
            mean, deviation = model.predict(asked)
        else:  # too few observations: predict an average config, with a wide deviation
            mean, deviation = np.zeros(len(draw)), np.ones(len(draw))
        gain = log_expected_improvement(scale.best, mean, deviation)
        if not correct.all():
            chances = self._surrogate.chances(self._features.codes(rows), ~correct, asked)
            hopeless = self._features.failing(rows, ~correct, draw, below=BY_CHANCE)
            gain = weighed(gain, np.log(chances), len(rows), hopeless=hopeless)
        place = int(np.argmax(gain))
        return Proposal(self._offset + int(draw[place]), float(gain[place]))

    def _draw(self, good: Ints, log_times: Floats, rng: np.random.Generator) -> Ints:
        """Return rows worth scoring: all free rows if there are few, or else random ones and the neighbours of the
        best.
        """
        free = self._free()
        if len(free) <= DRAW * 3 // 2:
            return free
        parts = [free[rng.integers(len(free), size=DRAW)]]
        for place, elite in enumerate(good[np.argsort(log_times, kind="stable")[:ELITES]]):
            parts.append(self._near.within_one(int(elite)))
            if place == 0:
                two = self._near.within_two(int(elite))
                parts.append(two if len(two) <= DRAW_NEAR_BEST else rng.choice(two, DRAW_NEAR_BEST, replace=False))
        draw = np.unique(np.concatenate(parts))
        return draw[self._state.free_of(self.number)[draw]]

    def _free(self) -> Ints:
        return np.flatnonzero(self._state.free_of(self.number))

    def _pending(self) -> Ints:
        rows = [i - self._offset for i in self._state.pending if self._state.family_of(i) == self.number]
        return np.array(rows, dtype=np.int64)

    def _proposed(self) -> Ints:
        return np.append(self._observed()[0], self._pending())

    def _observed(self) -> tuple[Ints, Floats]:
        """Return the rows and log times of this family's trials, in the order they were told."""
        observed = [o for o in self._state.observations if self._state.family_of(o.index) == self.number]
        rows = np.array([o.index - self._offset for o in observed], dtype=np.int64)
        return rows, np.array([o.value for o in observed], dtype=np.float64)
