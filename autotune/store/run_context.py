"""Where the trials of a run belong: a tuning target of a study, on a device, in an environment, in a measurement mode,
with families of some versions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, select

from autotune.devices.device import DeviceInfo, Environment
from autotune.problem import Layer
from autotune.store.devices import Runs
from autotune.store.layers import store_layer, store_layer_set
from autotune.store.rows import among, insert, values_of
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import templates
from autotune.store.sqlite.database import Database
from autotune.store.studies import StudyKey
from autotune.trial import Value


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A kernel family as it was when trials used it."""

    family: str
    hash: str
    """hash of the template's text with all included files"""
    header: str
    """the text of the header"""


def store_templates(connection: Connection, records: Sequence[TemplateRecord], now: datetime) -> dict[str, int]:
    """Ids of templates' versions, by family."""
    stored = select(templates).where(among(templates.c.hash, (record.hash for record in records)))
    found = {(row.family, row.hash): int(row.id) for row in connection.execute(stored)}
    for record in records:
        identity = record.family, record.hash
        if identity not in found:
            found[identity] = insert(connection, templates, {**values_of(record, templates), "first_seen_at": now})
    return {record.family: found[record.family, record.hash] for record in records}


@dataclass(frozen=True, slots=True)
class TemplateStore:
    """The kernel families, version by version."""

    database: Database

    def families(self) -> frozenset[str]:
        """The families that have or had trials."""
        with self.database.read() as connection:
            return frozenset(connection.execute(select(templates.c.family)).scalars())

    def header(self, family: str, template_hash: str) -> str:
        """The header of a family as it was when trials used it; empty if it is not stored."""
        same = and_(templates.c.family == family, templates.c.hash == template_hash)
        with self.database.read() as connection:
            return connection.execute(select(templates.c.header).where(same)).scalar_one_or_none() or ""

    def params(self, family: str, template_hash: str) -> Mapping[str, Sequence[Value]]:
        """The values of each parameter that the family declared then; empty if it is not stored."""
        params = tomllib.loads(self.header(family, template_hash)).get("params", {})
        return {name: list(param["values"]) for name, param in params.items()}


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
    template_ids: Mapping[str, int]
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
            ids = store_templates(run.connection, templates, run.now)
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
            ids = store_templates(run.connection, [template], run.now)
        return TargetScope(study, measurement_mode, tuning_target_id, run.device_id, run.environment_id, run.id, ids)
