"""What tuning a layer came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.problem import Layer
from autotune.search import Opening
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_finals import FinalsResult
from autotune.tuning.trial_log import Seen

WARM_START, PRIOR = "warm_start", "prior"
INTERRUPTED = "interrupted"
"""why a layer stopped that was to go on"""
NO_CONFIG = "no feasible config"
"""why a layer stopped that had nothing to try"""


@dataclass(frozen=True, slots=True)
class Listed:
    """An opening of configs that are known beforehand."""

    by: str
    configs: Sequence[Config]

    def next(self, told: Mapping[Config, float], pending: Sequence[Config]) -> Config | None:
        """The first config that was not asked for yet."""
        return next((config for config in self.configs if config not in told and config not in pending), None)


@dataclass(frozen=True, slots=True)
class Start:
    """What the search of a layer starts with."""

    openings: tuple[Opening, ...] = ()
    """by WARM_START or PRIOR"""
    layers: tuple[tuple[str, float], ...] = ()
    """`study.layer on DEVICE` that the warm starts come from to its distance, nearest first"""


COLD_START = Start()


@dataclass(frozen=True, slots=True)
class StartResult:
    """What came of the configs that a search started with."""

    by: str
    """WARM_START or PRIOR"""
    used: int
    layers: tuple[tuple[str, float], ...]
    """where warm starts come from"""
    best: Trial | None
    """the fastest of them; None when none is correct"""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What tuning one layer came to."""

    layer: Layer
    name: str
    best: Trial | None
    evaluated: int
    """evaluations in the study's history, this run's included"""
    new: int
    """evaluations of this run"""
    failures: Mapping[str, int]
    messages: Mapping[str, Seen]
    """by message"""
    stopped: str
    """why it ended: budget, time, exhausted, interrupted or what gain was expected"""
    starts: tuple[StartResult, ...]
    """none: the search started from nothing"""
    finals: FinalsResult | None

    @property
    def cut_short(self) -> bool:
        """Whether a wish to stop came before its end."""
        return self.stopped == INTERRUPTED

    @property
    def why_not(self) -> str:
        """Why it has no correct kernel: how it stopped and its commonest failure, a rule's where no config was left."""
        found = list(self.messages.values())
        if self.stopped != NO_CONFIG:
            found = [seen for seen in found if seen.outcome != Outcome.CONSTRAINTS]
        commonest = max(found, key=lambda seen: seen.count, default=None)
        return f"{self.stopped}: {commonest.message}" if commonest else self.stopped
