"""Keep track of a layer's trials during a run: known results, interrupted trials, the next number and the progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autotune.store import TrialKey
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_store import LayerState

Phase = Literal["listing", "start", "search", "finals"]
"""A layer's phases: `listing` its search spaces before any layer starts, `start` while the first kernels are being
compiled, `search` while trials are ending, and `finals`.
"""


@dataclass(frozen=True, slots=True)
class Network:
    """The progress of all layers in a run. Times are weighted by the layers' counts."""

    layers: int
    """number of layers that the run tunes"""
    timed: int
    """number of layers with a correct kernel; the times below include only these layers"""
    now_us: float
    """time of the network with the best kernels so far, microseconds"""
    start_us: float
    """time of the network with the previous best kernels, or else with the first correct kernels, microseconds"""
    floor_us: float | None
    """minimum time of the network, microseconds; None: the device was not calibrated"""
    done: int
    """number of evaluations so far, including earlier runs"""
    budget: int
    """maximum number of evaluations"""
    elapsed_s: float
    """seconds since the run began"""
    budget_s: float | None
    """total time budget in seconds, if the layers share one"""
    searching: int
    """number of layers that are still being searched"""
    concluded: int
    """number of layers whose finals have ended"""
    ended: bool
    """whether this is the last report of the run"""


@dataclass(frozen=True, slots=True)
class Progress:
    """A layer's progress, passed to the observer at the beginning of each phase and after every trial."""

    layer: str
    """name in the form `study.layer`"""
    done: int
    """number of evaluations so far, including earlier runs"""
    budget: int
    """maximum number of evaluations, or `done` if that is larger"""
    best: Trial | None
    """the fastest correct trial so far; None before the first correct trial"""
    failures: Mapping[str, int]
    """number of failed trials by outcome"""
    elapsed_s: float
    """time that the layer has taken so far, seconds"""
    reused: int
    """number of trials whose result was already in the database"""
    ended: bool
    """whether this is the layer's last report"""
    trial: Trial | None = None
    """the trial that has just ended; None if this report is not about a trial"""
    network: Network | None = None
    """progress of all layers; None: the run has only one layer"""
    phase: Phase = "search"
    """the current phase of the layer"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A message shared by failed trials, with an example and the number of occurrences."""

    message: str
    outcome: Outcome
    count: int
    """number of occurrences"""
    config: Config
    """the config of one of these trials"""


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """Return the correct trial with the smallest median (the first of equal ones), or None if none is correct."""
    correct = (trial for trial in trials if trial.median_us is not None)
    return min(correct, key=lambda trial: trial.median_us or 0.0, default=None)


class TrialLog:
    """A layer's trials, from the database and from this run, in the order they ended."""

    def __init__(
        self,
        state: LayerState,
        *,
        label: str,
        budget: int,
        observe: Callable[[Progress], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._state = state
        self.label, self._budget, self._observe, self._clock = label, budget, observe, clock
        self._started = clock()
        self.next_number = state.next_number
        """number of the next new trial"""
        self.trials: list[Trial] = []
        self.evaluated: set[str] = set()
        """hashes of the sources that were evaluated"""
        self.failures: Counter[str] = Counter()
        self.messages: dict[str, Seen] = {}
        self.best: Trial | None = None
        self.reused = 0

    def take_number(self) -> int:
        """Return the next trial's number and advance the counter."""
        self.next_number += 1
        return self.next_number - 1

    def suspects(self, wanted: Callable[[Config], bool]) -> tuple[TrialKey, ...]:
        """Return those wanted trials that a killed run left `running`. Each of them is tried again on its own."""
        return tuple(suspect for suspect in self._state.suspects if wanted(suspect.config))

    def report(self, done: int, *, trial: Trial | None = None, ended: bool = False, phase: Phase = "search") -> None:
        """Report the layer's progress to the observer."""
        self._observe(
            Progress(
                layer=self.label,
                done=done,
                budget=max(self._budget, done),
                best=self.best,
                failures=dict(self.failures),
                elapsed_s=self._clock() - self._started,
                reused=self.reused,
                ended=ended,
                trial=trial,
                phase=phase,
            )
        )

    def count_failure(self, trial: Trial) -> None:
        """Count a failed trial by outcome and by message."""
        self.failures[trial.outcome.value] += 1
        seen = self.messages.get(trial.message)
        self.messages[trial.message] = (
            replace(seen, count=seen.count + 1) if seen else Seen(trial.message, trial.outcome, 1, trial.config)
        )

    def add(self, trial: Trial, *, known: bool = False) -> None:
        """Count a finished trial. `known` means that its result was already in the database."""
        self.trials.append(trial)
        self.reused += known
        if trial.compiled and trial.source_hash is not None:
            self.evaluated.add(trial.source_hash)
        if trial.outcome != Outcome.CORRECT:
            self.count_failure(trial)
        self.best = fastest([*([self.best] if self.best else []), trial])

    def disprove(self, disproved: Trial) -> None:
        """Change the outcome of a trial that was correct, and of all trials with the same kernel."""
        self.count_failure(disproved)
        same = {trial.number for trial in self.trials if trial.source_hash == disproved.source_hash}
        self.trials = [
            replace(trial, outcome=disproved.outcome, reason=disproved.reason, message=disproved.message)
            if trial.number in same
            else trial
            for trial in self.trials
        ]
        self.best = fastest(self.trials)
