"""store -> results: collect a report's content for each layer, device and measurement mode."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.analysis.history import history_rows
from autotune.analysis.networks import Network, networks, rival_of, stored_study
from autotune.analysis.rooflines import BestWithRoofline, with_roofline
from autotune.api.family_importance import FamilyImportance, importance_of
from autotune.columns import Cells
from autotune.devices.device import DeviceInfo, Environment, Rate
from autotune.errors import StoreError
from autotune.problem import Layer
from autotune.replay.recorded_trials import Measured, families_of, measured_rows
from autotune.study import Study
from autotune.trial import END_TO_END
from autotune.tuning.ladder import LadderStep, circumstances, ladder_steps

if TYPE_CHECKING:
    from autotune.store import FinalsRow, NoiseFloor, Store, TrialRow, Verdict


@dataclass(frozen=True, slots=True)
class LayerResults:
    """A layer's results on one device in one measurement mode."""

    name: str
    """`study.layer`"""
    layer: Layer
    device: DeviceInfo
    measurement_mode: str
    environment: Environment
    """the environment of the latest trial"""
    trials: tuple[TrialRow, ...]
    """the trials of the study's newest generation, by number"""
    best: tuple[BestWithRoofline, ...]
    """the best kernel of each accuracy class, fastest first; a kernel may come from another study of the same shape"""
    winner: BestWithRoofline | None
    """the fastest kernel among the accuracy classes that may win; without one, the fastest kernel of any class"""
    rival: Verdict | None
    """the fastest baseline among the accuracy classes that may win, in the finals that the winner won"""
    finals: tuple[FinalsRow, ...]
    """the finals that are not superseded, oldest first"""
    events: tuple[Cells, ...]
    """how the best time improved, as rows of `history`"""
    importances: tuple[FamilyImportance, ...]
    ladder_steps: tuple[LadderStep, ...]
    """the steps of the study's ladder; empty if it has no techniques"""
    rates: tuple[Rate, ...]
    noise: NoiseFloor | None


@dataclass(frozen=True, slots=True)
class Results:
    """The content of a report."""

    name: str
    """the name of the study or layer, as the user gave it"""
    layers: tuple[LayerResults, ...]
    networks: tuple[Network, ...]
    """totals of the layers for each device and measurement mode; empty for a single layer"""
    studies: tuple[Study, ...]
    """the studies, as they were last tuned"""


def results(store: Store, what: str, devices: Sequence[DeviceInfo] | None = None) -> Results:
    """Collect all results of a study, `study.layer` or layer, on some devices or on all devices.

    Commands (`best`, `history`, `importance`, `ladder`) print the same results. Raises StoreError if there are none.
    """
    groups: dict[tuple[str, tuple[str, str, int, int, int], str], list[TrialRow]] = {}
    for row in store.trials.list(what):
        if devices is None or row.device in devices:
            groups.setdefault((row.name, row.device.identity, row.measurement_mode), []).append(row)
    if not groups:
        raise StoreError(f"{what}: there is no trial to report; `autotune trials` lists the recorded trials")
    best = [with_roofline(store, row) for row in store.best.list(what)]
    names = dict.fromkeys(rows[0].study for rows in groups.values())
    studies = {name: stored_study(store, name) for name in names}
    shared = _Shared(
        store,
        studies=studies,
        best=best,
        finals=tuple(row for row in store.finals.list(what) if row.superseded_at is None),
        measured=measured_rows(store, list(dict.fromkeys(rows[0].problem for rows in groups.values()))),
    )
    found = networks(store, what, best)
    return Results(
        name=what,
        layers=tuple(shared.layer(rows) for rows in groups.values()),
        networks=tuple(one for one in found if devices is None or one.device in {info.name for info in devices}),
        studies=tuple(studies.values()),
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """Query results that all layers share."""

    store: Store
    studies: dict[str, Study]
    best: Sequence[BestWithRoofline]
    finals: Sequence[FinalsRow]
    measured: dict[Measured, tuple[TrialRow, ...]]

    def layer(self, rows: Sequence[TrialRow]) -> LayerResults:
        """Collect the results of one layer's trials on one device in one measurement mode."""
        first, last = rows[0], max(rows, key=lambda row: row.id)
        study, device, measurement_mode = self.studies[first.study], first.device, first.measurement_mode

        def here(row: TrialRow) -> bool:
            return (row.problem, row.device.identity, row.measurement_mode) == (
                first.problem,
                device.identity,
                measurement_mode,
            )

        best = sorted(
            (one for one in self.best if one.best.name == first.name and here(one.best.row)),
            key=lambda one: one.best.median_us,
        )
        admitted = [one for one in best if one.best.row.trial.accuracy in study.admitted(first.problem)]
        winner = next(iter(admitted or best), None)
        finals = tuple(row for row in self.finals if here(row.winner))
        events = history_rows(self.store.results.history(first.problem, device))
        ladder = [
            row for of_one in circumstances(rows).values() for row in ladder_steps(study, [first.layer], of_one, {})
        ]
        return LayerResults(
            name=first.name,
            layer=first.layer,
            device=device,
            measurement_mode=measurement_mode,
            environment=last.environment,
            trials=tuple(sorted(rows, key=lambda row: (row.trial.number, row.id))),
            best=tuple(best),
            winner=winner,
            rival=rival_of(winner, finals, study.admitted(first.problem)) if winner else None,
            finals=finals,
            events=tuple(event for event in events if event["measurement_mode"] == measurement_mode),
            importances=self._importances(last, {row.trial.config.template for row in rows}),
            ladder_steps=tuple(ladder),
            rates=() if measurement_mode == END_TO_END else self.store.rates.list(device),
            noise=self.store.noise_floors.latest(device, measurement_mode),
        )

    def _importances(self, row: TrialRow, families: Set[str]) -> tuple[FamilyImportance, ...]:
        """Compute importances for families with enough trials, in any study of the same shape. The families with the
        most trials come first.
        """
        measured = (row.problem, row.device.identity, row.environment.identity, row.measurement_mode)
        found = [
            FamilyImportance(row.name, row.device.name, one.family, importance)
            for one in families_of(self.store, self.measured.get(measured, ()))
            if one.family in families and (importance := importance_of(one)) is not None
        ]
        return tuple(sorted(found, key=lambda family: -family.found.trials))
