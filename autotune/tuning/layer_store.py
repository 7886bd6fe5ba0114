"""A layer in the results database: its state at the beginning of a run, and a writer for the run's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.devices.device import DeviceInfo, Environment
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import (
    Finals,
    Scope,
    Store,
    StudyKey,
    TemplateRecord,
    TrialKey,
)
from autotune.trial import Config, Trial

STRIKES = 2  # interrupted runs of a kernel after which it is quarantined


@dataclass(frozen=True, slots=True)
class LayerState:
    """A layer's stored state on a device when a run, or a part of one, begins."""

    name: str
    """name in the form `study.layer`"""
    trials: tuple[Trial, ...]
    """finished trials, ordered by number, without imported trials"""
    suspects: tuple[TrialKey, ...]
    """trials that a killed run left `running`"""
    next_number: int
    """a number larger than the number of any trial"""
    known: Mapping[str, Trial]
    """known results of any study, by source hash"""
    quarantined: frozenset[str]
    """hashes of sources that must not be launched"""
    finals_are_current: bool
    """whether finals decided the layer's best kernel, and no correct trial is newer than the finals"""


def template_records(families: Mapping[str, KernelTemplate]) -> tuple[TemplateRecord, ...]:
    """Return the families' records for the database."""
    return tuple(TemplateRecord(family.name, family.hash, family.header) for family in families.values())


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer in a results database.

    Cluster workers don't have a database. They get the layer's state with the task, and use a substitute for this class
    that reports each call to the coordinator (`cluster.task.reporting`).
    """

    store: Store
    scope: Scope
    info: DeviceInfo
    environment: Environment
    running: dict[int, TrialKey] = field(default_factory=dict)
    """trials that were started and have not ended, by number, in the order they started"""

    @staticmethod
    def open(
        store: Store,
        key: StudyKey,
        layer: Layer,
        info: DeviceInfo,
        environment: Environment,
        measurement_mode: str,
        records: Sequence[TemplateRecord],
    ) -> StoredLayer:
        """Open a study's layer on a device. `records` contains every family that its configs may use."""
        scope = store.scopes.open(key, layer, info, environment, measurement_mode, records)
        return StoredLayer(store, scope, info, environment)

    def state(self) -> LayerState:
        """Read the current state of the layer."""
        store, scope = self.store, self.scope
        next_number = store.trials.next_number(scope)
        trials = store.trials.history(scope) if next_number else ()
        own = {trial.source_hash: trial for trial in trials if trial.source_hash is not None}
        return LayerState(
            scope.name,
            trials,
            store.trials.suspects(scope) if next_number else (),
            next_number,
            {**store.known.of_other_studies(scope), **own},
            store.quarantine.hashes(scope),
            store.finals.are_current(scope),
        )

    def begin(self, number: int, config: Config, source: KernelSource, *, proposed_by: str) -> None:
        """Store a trial as `running`."""
        self.running[number] = self.store.trials.begin(self.scope, number, config, source, proposed_by=proposed_by)

    def end(self, trial: Trial) -> None:
        """Store the result of a running trial."""
        self.store.trials.end(self.running.pop(trial.number), trial)

    def withdraw(self) -> None:
        """Withdraw the trials that haven't ended, so that they don't count as strikes after the user ended the run."""
        self.store.trials.withdraw(self.running.values())

    def add(self, trial: Trial, source: KernelSource, *, proposed_by: str) -> None:
        """Store a trial whose kernel was never launched."""
        self.store.trials.add(self.scope, trial, source, proposed_by=proposed_by)

    def reuse(self, number: int, config: Config, source_hash: str, *, proposed_by: str) -> None:
        """Store a source's known result as a trial."""
        known = self.store.known.get(self.scope, source_hash)
        assert known is not None  # noqa: S101 - the state has it, or this run has stored it
        self.store.known.reuse(self.scope, number, config, known, proposed_by=proposed_by)

    def quarantine(self, source_hash: str, reason: str, message: str) -> None:
        """Quarantine a source, so that it never runs on this device again."""
        self.store.quarantine.add(self.scope, source_hash, reason, message)

    def disprove(self, source_hash: str, message: str) -> None:
        """Record that the kernel of a correct trial later gave a wrong result, which invalidates its time."""
        row = self.store.known.get(self.scope, source_hash)
        if row is not None:
            self.store.retimes.add(row, self.info, self.environment, "failed", None, message)

    def add_finals(self, finals: Finals, noise_us: float, noise: float) -> None:
        """Store the result of finals and the noise floor."""
        self.store.finals.add(self.scope, finals)
        self.store.noise_floors.add(self.info, self.environment, self.scope.measurement_mode, noise_us, noise)


def quarantine_suspects(
    state: LayerState, suspects: Sequence[TrialKey], writer: StoredLayer, info: DeviceInfo
) -> LayerState:
    """Quarantine kernels that were running when STRIKES runs were killed, and return the layer's new state.

    On a device that doesn't run kernels, nothing is quarantined.
    """
    struck = set()
    for suspect in suspects:
        if suspect.attempts >= STRIKES and suspect.source_hash is not None and info.can.compile:
            writer.quarantine(suspect.source_hash, "crash", f"{suspect.attempts} runs ended while it was running")
            struck.add(suspect.source_hash)
    return replace(state, quarantined=state.quarantined | struck)
