"""The LayerStore of a task: has the task's trials in memory and reports each change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from operator import methodcaller

from autotune.cluster.task import LayerTask, Report
from autotune.family.source import KernelSource
from autotune.store import Finals, Suspect, TopTrial
from autotune.trial import Config, Phases, Trial
from autotune.tuning.layer_store import FinalsState


class ReportedLayer:
    """A layer's trials in memory. `report` is called with the call that makes the same change in the database."""

    def __init__(self, task: LayerTask, report: Callable[[Report], None]) -> None:
        self._task, self._report = task, report
        own = {trial.source_hash: trial for trial in task.trials if trial.source_hash is not None}
        self._known = {**task.known, **own}

    @property
    def name(self) -> str:
        """`study.layer`."""
        return self._task.name

    def history(self) -> Sequence[Trial]:
        """The finished trials of the task."""
        return self._task.trials

    def top_trials(self, kinds: Sequence[str], accuracies: Sequence[str]) -> tuple[TopTrial, ...]:  # noqa: ARG002
        """The trials of similar layers that the coordinator chose."""
        return self._task.tuned

    def suspects(self) -> Sequence[Suspect]:
        """The trials that an earlier run left running."""
        return self._task.suspects

    def next_number(self) -> int:
        """The number after every trial."""
        return self._task.next_number

    def free_numbers(self, number: int) -> Sequence[int]:
        """The smallest numbers that no trial has."""
        return list(islice(chain(self._task.free_numbers, count(self._task.next_number)), number))

    def known(self) -> frozenset[str]:
        """Hashes of the sources that have a result."""
        return frozenset(self._known)

    def quarantined(self) -> frozenset[str]:
        """Hashes of the sources that must not be launched."""
        return self._task.quarantined

    def quarantine(self, source_hash: str, reason: str, message: str) -> None:
        """Never launch a source again."""
        self._report(methodcaller("quarantine", source_hash, reason, message))

    def begin(self, number: int, config: Config, source: KernelSource, *, proposed_by: str) -> None:
        """Report a trial before its kernel is launched."""
        self._report(methodcaller("begin", number, config, source, proposed_by=proposed_by))

    def end(self, trial: Trial) -> None:
        """Report the result of a running trial."""
        self._learn(trial)
        self._report(methodcaller("end", trial))

    def add(self, trial: Trial, source: KernelSource, *, proposed_by: str) -> None:
        """Report a trial whose kernel was never launched."""
        self._learn(trial)
        self._report(methodcaller("add", trial, source, proposed_by=proposed_by))

    def add_rejected(self, trials: Sequence[Trial]) -> None:
        """Report trials whose configs break a rule."""
        if trials:
            self._report(methodcaller("add_rejected", trials))

    def reuse(self, number: int, config: Config, source_hash: str, *, proposed_by: str) -> Trial | None:
        """Report the known result of a source as a trial."""
        known = self._known.get(source_hash)
        if known is None:
            return None
        self._report(methodcaller("reuse", number, config, source_hash, proposed_by=proposed_by))
        return replace(known, number=number, config=config, phases=Phases())

    def disprove(self, source_hash: str, message: str) -> None:
        """Report that a kernel with a correct trial gave a wrong result later."""
        self._report(methodcaller("disprove", source_hash, message))

    def finals_state(self) -> FinalsState:
        """Whether finals were held before the task."""
        return self._task.finals_state

    def add_finals(self, finals: Finals, noise_us: float, noise: float) -> None:
        """Report finals with their noise floor."""
        self._report(methodcaller("add_finals", finals, noise_us, noise))

    def _learn(self, trial: Trial) -> None:
        if trial.source_hash is not None:
            self._known[trial.source_hash] = trial
