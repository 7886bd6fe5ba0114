"""Where the trials of a run belong: a tuning target of a study, on a device, in an environment, in
a measurement mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.devices.device import DeviceInfo, Environment
from autotune.problem import Layer
from autotune.store.devices import Run, Runs
from autotune.store.layers import store_layer, store_layer_set
from autotune.store.schema.types import Values
from autotune.store.sqlite.database import Database
from autotune.store.studies import StudyKey
from autotune.store.templates import TemplateRecord, store_templates

SCOPE = ("study_id", "tuning_target_id", "device_id", "environment_id", "measurement_mode")
"""the columns of a scope, within which trial numbers are unique"""


@dataclass(frozen=True, slots=True)
class TargetScope:
    """Where a run's trials belong: a tuning target of a study, on a device, in an environment."""

    study: StudyKey
    measurement_mode: str
    tuning_target_id: int
    device_id: int
    environment_id: int
    run_id: int
    template_ids: tuple[tuple[str, int], ...]
    """family to the id of its template row"""

    @property
    def identity(self) -> Values:
        """The columns that identify the scope of a trial or of finals."""
        values = (self.study.id, self.tuning_target_id, self.device_id, self.environment_id, self.measurement_mode)
        return dict(zip(SCOPE, values, strict=True))

    @property
    def name(self) -> str:
        """The study, as on the command line."""
        return self.study.name


@dataclass(frozen=True, slots=True)
class Scope(TargetScope):
    """Where the trials of one layer belong."""

    layer: Layer
    layer_id: int

    @property
    def name(self) -> str:
        """`study.layer`, as on the command line."""
        return f"{self.study.name}.{self.layer.name}"


@dataclass(frozen=True, slots=True)
class ScopeStore:
    """A scope, stored when it is first asked for."""

    database: Database
    runs: Runs

    def open(
        self,
        study: StudyKey,
        layer: Layer,
        device: DeviceInfo,
        environment: Environment,
        measurement_mode: str,
        templates: Sequence[TemplateRecord],
    ) -> Scope:
        """The scope of a run's trials of one layer; `templates` has every family that its configs may name."""
        with self.runs.write(device, environment) as run:
            layer_id, tuning_target_id = store_layer(run.connection, layer)
            ids = _template_ids(run, templates)
        return Scope(
            study, measurement_mode, tuning_target_id, run.device_id, run.environment_id, run.id, ids, layer, layer_id
        )

    def open_set(
        self,
        study: StudyKey,
        layers: Sequence[Layer],
        device: DeviceInfo,
        environment: Environment,
        measurement_mode: str,
        template: TemplateRecord,
    ) -> TargetScope:
        """The scope of the trials of a set of layers, for dispatchers."""
        with self.runs.write(device, environment) as run:
            tuning_target_id = store_layer_set(run.connection, layers)
            ids = _template_ids(run, [template])
        return TargetScope(study, measurement_mode, tuning_target_id, run.device_id, run.environment_id, run.id, ids)


def _template_ids(run: Run, records: Sequence[TemplateRecord]) -> tuple[tuple[str, int], ...]:
    ids = store_templates(run.connection, records, run.now)
    return tuple((record.family, id_) for record, id_ in zip(records, ids, strict=True))
