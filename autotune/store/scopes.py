"""Where the trials of a run go: a subject of a study, on a device, in an environment, under a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column

from autotune.devices.device import DeviceInfo, Environment
from autotune.problem import Layer
from autotune.store.column_types import Values, reference, text
from autotune.store.devices import Run, Runs
from autotune.store.layers import store_layer, store_layer_set
from autotune.store.sqlite.database import Database
from autotune.store.studies import StudyKey
from autotune.store.templates import TemplateRecord, store_templates

SCOPE = ("study_id", "subject_id", "device_id", "environment_id", "policy")
"""the columns of a scope: what a trial's number counts within"""


def scope_columns() -> tuple[Column[int] | Column[str], ...]:
    """The columns of SCOPE for one more table."""
    return (
        reference("study_id", "studies.id"),
        reference("subject_id", "subjects.id"),
        reference("device_id", "devices.id"),
        reference("environment_id", "environments.id"),
        text("policy"),
    )


@dataclass(frozen=True, slots=True)
class SubjectScope:
    """Where a run's trials go: one subject of a study, on one device, in one environment, under one policy."""

    study: StudyKey
    policy: str
    subject_id: int
    device_id: int
    environment_id: int
    run_id: int
    template_ids: tuple[tuple[str, int], ...]
    """family to the id of its template row"""

    @property
    def identity(self) -> Values:
        """The columns that say whose a trial or finals are."""
        values = (self.study.id, self.subject_id, self.device_id, self.environment_id, self.policy)
        return dict(zip(SCOPE, values, strict=True))

    @property
    def name(self) -> str:
        """The study, as on the command line."""
        return self.study.name


@dataclass(frozen=True, slots=True)
class Scope(SubjectScope):
    """Where the trials of one layer go."""

    layer: Layer
    layer_id: int

    @property
    def name(self) -> str:
        """`study.layer`, as on the command line."""
        return f"{self.study.name}.{self.layer.name}"


@dataclass(frozen=True, slots=True)
class ScopeStore:
    """Where trials go, made when it is first asked for."""

    database: Database
    runs: Runs

    def open(
        self,
        study: StudyKey,
        layer: Layer,
        device: DeviceInfo,
        environment: Environment,
        policy: str,
        templates: Sequence[TemplateRecord],
    ) -> Scope:
        """Where a run's trials of one layer go; `templates` has every family that its configs may name."""
        with self.runs.write(device, environment) as run:
            layer_id, subject_id = store_layer(run.connection, layer)
            ids = _template_ids(run, templates)
        return Scope(study, policy, subject_id, run.device_id, run.environment_id, run.id, ids, layer, layer_id)

    def open_set(
        self,
        study: StudyKey,
        layers: Sequence[Layer],
        device: DeviceInfo,
        environment: Environment,
        policy: str,
        template: TemplateRecord,
    ) -> SubjectScope:
        """Where the trials of a set of layers go: those of dispatchers."""
        with self.runs.write(device, environment) as run:
            subject_id = store_layer_set(run.connection, layers)
            ids = _template_ids(run, [template])
        return SubjectScope(study, policy, subject_id, run.device_id, run.environment_id, run.id, ids)


def _template_ids(run: Run, records: Sequence[TemplateRecord]) -> tuple[tuple[str, int], ...]:
    ids = store_templates(run.connection, records, run.now)
    return tuple((record.family, id_) for record, id_ in zip(records, ids, strict=True))
