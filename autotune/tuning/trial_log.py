"""The trials of a layer during a run: known results, interrupted trials, the next number, the progress."""

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
"""The phases of a layer: its spaces are listed, before any layer starts; its first kernels are compiled; trials end;
finals run.
"""


@dataclass(frozen=True, slots=True)
class Network:
    """The progress of a run's layers, each weighted by its count."""

    layers: int
    """layers that the run tunes"""
    timed: int
    """layers with a correct kernel: the times below are of these"""
    now_us: float
    """time of the network with the best kernels so far, microseconds"""
    start_us: float
    """with the previous best kernels, or else with the first correct ones"""
    floor_us: float | None
    """None: the device was not calibrated"""
    done: int
    """evaluations so far, earlier runs included"""
    budget: int
    """maximum number of evaluations"""
    elapsed_s: float
    """seconds since the run began"""
    budget_s: float | None
    """total time in seconds, if the layers share one"""
    searching: int
    """layers that are still being searched"""
    concluded: int
    """layers whose finals have ended"""
    ended: bool
    """whether this is the last report of all"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a layer; passed to the observer when a phase begins, and after every trial."""

    layer: str
    """study.layer"""
    done: int
    """evaluations so far, earlier runs included"""
    budget: int
    """maximum number of evaluations, or the number of earlier runs' evaluations if that is larger"""
    best: Trial | None
    """the fastest correct trial so far; None before the first"""
    failures: Mapping[str, int]
    """outcome to number of trials, without correct ones"""
    elapsed_s: float
    """seconds since the layer began"""
    reused: int
    """trials whose result was already in the database"""
    ended: bool
    """whether this is the layer's last report"""
    trial: Trial | None = None
    """the trial that has just ended; None in a report without one"""
    network: Network | None = None
    """None: the layer is tuned alone"""
    phase: Phase = "search"
    """the current phase"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One message of failed trials."""

    message: str
    outcome: Outcome
    count: int
    """number of occurrences"""
    config: Config
    """an example"""


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """The first correct trial with the smallest median; None without a correct one."""
    correct = (trial for trial in trials if trial.median_us is not None)
    return min(correct, key=lambda trial: trial.median_us or 0.0, default=None)


class TrialLog:
    """The trials of a layer that a run knows, in the order in which they ended."""

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
        """the number of the next new trial"""
        self.trials: list[Trial] = []
        self.evaluated: set[str] = set()
        """source hashes, each of which cost one evaluation"""
        self.failures: Counter[str] = Counter()
        self.messages: dict[str, Seen] = {}
        self.best: Trial | None = None
        self.reused = 0

    def take_number(self) -> int:
        """The number of a new trial."""
        self.next_number += 1
        return self.next_number - 1

    def suspects(self, wanted: Callable[[Config], bool]) -> tuple[TrialKey, ...]:
        """The wanted trials that a killed run left running, by number; each is tried again, alone."""
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
        """Count a failed trial under its outcome and its message."""
        self.failures[trial.outcome.value] += 1
        seen = self.messages.get(trial.message)
        self.messages[trial.message] = (
            replace(seen, count=seen.count + 1) if seen else Seen(trial.message, trial.outcome, 1, trial.config)
        )

    def add(self, trial: Trial, *, known: bool = False) -> None:
        """Count a finished trial; `known`: its result was in the database before."""
        self.trials.append(trial)
        self.reused += known
        if trial.compiled and trial.source_hash is not None:
            self.evaluated.add(trial.source_hash)
        if trial.outcome != Outcome.CORRECT:
            self.count_failure(trial)
        self.best = fastest([*([self.best] if self.best else []), trial])

    def disprove(self, disproved: Trial) -> None:
        """Count a trial that was correct, and all with the same kernel, under its new outcome."""
        self.count_failure(disproved)
        same = {trial.number for trial in self.trials if trial.source_hash == disproved.source_hash}
        self.trials = [
            replace(trial, outcome=disproved.outcome, reason=disproved.reason, message=disproved.message)
            if trial.number in same
            else trial
            for trial in self.trials
        ]
        self.best = fastest(self.trials)
