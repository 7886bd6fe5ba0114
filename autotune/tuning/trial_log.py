"""The trials of a layer while a run adds to them: what is known, what was cut off, the next number, how far it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotune.devices.device import DeviceInfo
from autotune.store import Suspect
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_store import LayerStore

Phase = Literal["listing", "start", "search", "finals"]
"""Of a layer: its search spaces are listed, before any layer begins; nothing has ended yet, as its first kernels are
compiled; trials end; finals are held."""

STRIKES = 2  # runs that ended while a kernel was running, after which it is quarantined


@dataclass(frozen=True, slots=True)
class Network:
    """How far the layers of a run are, each as often as the network runs it."""

    layers: int
    """layers that the run tunes"""
    timed: int
    """layers with a correct kernel: the times below are of these"""
    now_us: float
    """time of the network with the best kernels so far, microseconds"""
    start_us: float
    """with the best kernels of before, else the first correct ones"""
    floor_us: float | None
    """None: the device was not calibrated"""
    done: int
    """evaluations so far, earlier runs included"""
    budget: int
    """evaluations at most"""
    elapsed_s: float
    """seconds since the run began"""
    budget_s: float | None
    """seconds for all layers, where they share a time budget"""
    searching: int
    """layers whose search goes on"""
    concluded: int
    """layers whose finals are over"""
    ended: bool
    """the last report of all"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a layer is; given to the observer as each of its phases begins, and after every trial."""

    layer: str
    """study.layer"""
    done: int
    """evaluations so far, earlier runs included"""
    budget: int
    """evaluations at most"""
    best: Trial | None
    """the fastest correct trial so far; None before the first"""
    failures: Mapping[str, int]
    """outcome to number of trials, correct ones left out"""
    elapsed_s: float
    """seconds since the layer began"""
    reused: int
    """trials whose result was already in the database"""
    ended: bool
    """the layer's last report"""
    trial: Trial | None = None
    """the one that has just ended; None in a report that no trial led to"""
    network: Network | None = None
    """None: the layer is tuned alone"""
    phase: Phase = "search"
    """what the layer is doing"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One message of failures."""

    message: str
    outcome: Outcome
    count: int
    """how often it was seen"""
    config: Config
    """one that has it"""


class TrialLog:
    """What a run knows of the trials of a layer, in the order in which they ended."""

    def __init__(
        self,
        store: LayerStore,
        *,
        label: str,
        budget: int,
        observe: Callable[[Progress], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self.label, self._budget, self._observe, self._clock = label, budget, observe, clock
        self._started = clock()
        self._next = store.next_number()
        self.trials: list[Trial] = []
        self.evaluated: set[str] = set()
        """source hashes, each of which cost one evaluation"""
        self.failures: Counter[str] = Counter()
        self.messages: dict[str, Seen] = {}
        self.best: Trial | None = None
        self.reused = 0

    @property
    def elapsed_s(self) -> float:
        """Since the run began with the layer."""
        return self._clock() - self._started

    @property
    def next_number(self) -> int:
        """What the next new trial is numbered."""
        return self._next

    def take_number(self) -> int:
        """The number of a new trial."""
        self._next += 1
        return self._next - 1

    def take_numbers(self, count: int) -> Sequence[int]:
        """The smallest numbers that no trial has; what a killed run had taken and not used is given out again."""
        numbers = self._store.free_numbers(count)
        self._next = max((self._next, *(number + 1 for number in numbers[-1:])))
        return numbers

    def suspects(self, wanted: Callable[[Config], bool]) -> tuple[Suspect, ...]:
        """The wanted trials that a killed run left running, by number, to be tried once more, each alone."""
        return tuple(suspect for suspect in self._store.suspects() if wanted(suspect.trial.config))

    def quarantine(self, suspects: Sequence[Suspect], info: DeviceInfo) -> None:
        """Quarantine the kernels that have taken down STRIKES runs, where something really runs."""
        for suspect in suspects:
            source_hash = suspect.key.source_hash
            if suspect.attempts >= STRIKES and source_hash is not None and info.can.compile:
                message = f"{suspect.attempts} runs ended while it was running"
                self._store.quarantine(source_hash, "crash", message)

    def report(self, done: int, *, trial: Trial | None = None, ended: bool = False, phase: Phase = "search") -> None:
        """Tell the observer how far the layer is."""
        self._observe(
            Progress(
                layer=self.label,
                done=done,
                budget=self._budget,
                best=self.best,
                failures=dict(self.failures),
                elapsed_s=self.elapsed_s,
                reused=self.reused,
                ended=ended,
                trial=trial,
                phase=phase,
            )
        )

    def count_failure(self, trial: Trial) -> None:
        """Count a trial that is not correct, under its outcome and its message."""
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
