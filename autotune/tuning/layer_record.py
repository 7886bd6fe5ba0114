"""What is known of a layer while it is tuned, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.problem import Layer
from autotune.search import Opening
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_finals import FinalsResult


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a layer is; given to the observer after every trial."""

    layer: str
    """study.layer"""
    done: int
    """evaluations so far, earlier runs included"""
    budget: int
    best: Trial | None
    failures: Mapping[str, int]
    """outcome to number of trials, correct ones left out"""
    elapsed_s: float
    reused: int
    """trials whose result was already in the database"""
    ended: bool
    """the layer's last report"""


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
class Seen:
    """One message of failures."""

    message: str
    outcome: Outcome
    count: int
    """how often it was seen"""
    config: Config
    """one that has it"""


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


@dataclass(slots=True)
class History:
    """What is known of a layer so far."""

    trials: list[Trial] = field(default_factory=list)
    evaluated: set[str] = field(default_factory=set)
    """source hashes, each of which cost one evaluation"""
    failures: Counter[str] = field(default_factory=Counter)
    messages: dict[str, Seen] = field(default_factory=dict)
    best: Trial | None = None
    reused: int = 0

    def count_failure(self, trial: Trial) -> None:
        """Count a trial that is not correct, under its outcome and its message."""
        self.failures[trial.outcome.value] += 1
        seen = self.messages.get(trial.message)
        self.messages[trial.message] = (
            replace(seen, count=seen.count + 1) if seen else Seen(trial.message, trial.outcome, 1, trial.config)
        )

    def add(self, trial: Trial) -> None:
        """Count a finished trial."""
        self.trials.append(trial)
        if trial.compiled and trial.source_hash is not None:
            self.evaluated.add(trial.source_hash)
        if trial.outcome != Outcome.CORRECT:
            self.count_failure(trial)
        median = trial.median_us
        if median is not None and (self.best is None or median < (self.best.median_us or 0.0)):
            self.best = trial

    def disprove(self, disproved: Trial) -> None:
        """Count a trial that was correct, and all with the same kernel, as what it turned out to be."""
        self.count_failure(disproved)
        same = {trial.number for trial in self.trials if trial.source_hash == disproved.source_hash}
        self.trials = [
            replace(trial, outcome=disproved.outcome, reason=disproved.reason, message=disproved.message)
            if trial.number in same
            else trial
            for trial in self.trials
        ]
        correct = [trial for trial in self.trials if trial.median_us is not None]
        self.best = min(correct, key=lambda trial: trial.median_us or 0.0, default=None)
