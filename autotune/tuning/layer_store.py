"""The interface to a results database for tuning one layer: `LayerStore`, implemented for a `Store` by `StoredLayer`.

A cluster worker has another implementation (`cluster.reported_layer`), which reports the trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from autotune.devices.device import DeviceInfo, Environment
from autotune.family.source import KernelSource
from autotune.store import Finals, Scope, Store, Suspect, TopTrial, TrialKey, TrialRow
from autotune.trial import Config, Trial

FinalsState = Literal["none", "outdated", "current"]
"""Whether finals of the layer are stored, and whether a correct trial is newer than the latest of them."""


class LayerStore(Protocol):
    """The trials and finals of one layer on one device."""

    @property
    def name(self) -> str:
        """`study.layer`."""

    def history(self) -> Sequence[Trial]:
        """The finished trials, ordered by number."""

    def top_trials(self, kinds: Sequence[str], accuracies: Sequence[str]) -> tuple[TopTrial, ...]:
        """The best trials of all layers on devices of these kinds, in these accuracy classes."""

    def suspects(self) -> Sequence[Suspect]:
        """The trials that a killed run left running."""

    def next_number(self) -> int:
        """The number after every trial."""

    def free_numbers(self, count: int) -> Sequence[int]:
        """The smallest numbers that no trial has."""

    def known(self) -> frozenset[str]:
        """Hashes of the sources that have a result, in any study."""

    def quarantined(self) -> frozenset[str]:
        """Hashes of the sources that must not be launched."""

    def quarantine(self, source_hash: str, reason: str, message: str) -> None:
        """Never launch a source again."""

    def begin(self, number: int, config: Config, source: KernelSource, *, proposed_by: str) -> None:
        """Store a trial as running, before its kernel is launched."""

    def end(self, trial: Trial) -> None:
        """Store the result of a running trial."""

    def add(self, trial: Trial, source: KernelSource, *, proposed_by: str) -> None:
        """Store a trial whose kernel was never launched."""

    def add_rejected(self, trials: Sequence[Trial]) -> None:
        """Store trials whose configs break a rule."""

    def reuse(self, number: int, config: Config, source_hash: str, *, proposed_by: str) -> Trial | None:
        """Store the known result of a source as a trial; None if the source has no result."""

    def disprove(self, source_hash: str, message: str) -> None:
        """Store that a kernel with a correct trial gave a wrong result later."""

    def finals_state(self) -> FinalsState:
        """Whether finals are stored, and are newer than every correct trial."""

    def add_finals(self, finals: Finals, noise_us: float, noise: float) -> None:
        """Store finals, and the noise floor in microseconds and as a fraction."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One layer in a results database."""

    store: Store
    scope: Scope
    info: DeviceInfo
    environment: Environment
    running: dict[int, TrialKey] = field(default_factory=dict)
    """the trials that were started and have not ended, by number, in the order of their start"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return self.scope.name

    def history(self) -> Sequence[Trial]:
        """The finished trials, ordered by number; imported ones are left out."""
        return self.store.trials.history(self.scope)

    def top_trials(self, kinds: Sequence[str], accuracies: Sequence[str]) -> tuple[TopTrial, ...]:
        """The best trials of all layers on devices of these kinds, in these accuracy classes."""
        return self.store.top_trials.list(self.scope, kinds=kinds, accuracies=accuracies)

    def suspects(self) -> Sequence[Suspect]:
        """The trials that a killed run left running."""
        return self.store.trials.suspects(self.scope)

    def next_number(self) -> int:
        """The number after every trial."""
        return self.store.trials.next_number(self.scope)

    def free_numbers(self, count: int) -> Sequence[int]:
        """The smallest numbers that no trial has."""
        return self.store.trials.free_numbers(self.scope, count)

    def known(self) -> frozenset[str]:
        """Hashes of the layer's sources that have a result on this device, in any study."""
        return self.store.known.hashes(self.scope)

    def quarantined(self) -> frozenset[str]:
        """Hashes of the sources that must not be launched on this device."""
        return self.store.quarantine.hashes(self.scope)

    def quarantine(self, source_hash: str, reason: str, message: str) -> None:
        """Never launch a source again on this device."""
        self.store.quarantine.add(self.scope, source_hash, reason, message)

    def begin(self, number: int, config: Config, source: KernelSource, *, proposed_by: str) -> None:
        """Commit a trial as running."""
        self.running[number] = self.store.trials.begin(self.scope, number, config, source, proposed_by=proposed_by)

    def end(self, trial: Trial) -> None:
        """Commit the result of a running trial."""
        self.store.trials.end(self.running.pop(trial.number), trial)

    def add(self, trial: Trial, source: KernelSource, *, proposed_by: str) -> None:
        """Commit a trial whose kernel was never launched."""
        self.store.trials.add(self.scope, trial, source, proposed_by=proposed_by)

    def add_rejected(self, trials: Sequence[Trial]) -> None:
        """Commit trials whose configs break a rule."""
        self.store.trials.add_rejected(self.scope, trials)

    def reuse(self, number: int, config: Config, source_hash: str, *, proposed_by: str) -> Trial | None:
        """Commit the known result of a source as a trial."""
        known = self.store.known.get(self.scope, source_hash)
        if known is None:
            return None
        return self.store.known.reuse(self.scope, number, config, known, proposed_by=proposed_by)

    def disprove(self, source_hash: str, message: str) -> None:
        """Store that a kernel with a correct trial gave a wrong result later, which invalidates its time."""
        row = self.store.known.get(self.scope, source_hash)
        if row is not None:
            self.store.retimes.add(row, self.info, self.environment, "failed", None, message)

    def finals_state(self) -> FinalsState:
        """Whether finals decided the best kernel, and whether a correct trial is newer."""
        best = self.store.best.list(self.name, kind=self.info.kind)
        if not any(row.decided_by == "finals" and self._has(row.row) for row in best):
            return "none"
        last = max(row.sequence for row in self.store.finals.list(self.name) if self._has(row.winner))
        newer = any(
            row.median_us is not None and row.sequence > last and not row.reused and self._has(row)
            for row in self.store.trials.list(self.name, outcome="correct")
        )
        return "outdated" if newer else "current"

    def add_finals(self, finals: Finals, noise_us: float, noise: float) -> None:
        """Store finals with their noise floor."""
        self.store.finals.add(self.scope, finals)
        self.store.noise_floors.add(self.info, self.environment, self.scope.measurement_mode, noise_us, noise)

    def _has(self, row: TrialRow) -> bool:
        """Whether a trial was measured on this device, in the same way as in this run."""
        return row.device.identity == self.info.identity and row.measurement_mode == self.scope.measurement_mode
