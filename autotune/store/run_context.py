"""The scope of a run's trials: study, tuning target, device, environment, measurement mode and families."""

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
    """A version of a kernel family used by trials."""

    family: str
    hash: str
    """hash of the template's text with all included files"""
    header: str
    """the text of the template's header"""


def store_templates(connection: Connection, records: Sequence[TemplateRecord], now: datetime) -> dict[str, int]:
    """Store template versions that are new, and return each one's id by family."""
    stored = select(templates).where(among(templates.c.hash, (record.hash for record in records)))
    found = {(row.family, row.hash): int(row.id) for row in connection.execute(stored)}
    for record in records:
        identity = record.family, record.hash
        if identity not in found:
            found[identity] = insert(connection, templates, {**values_of(record, templates), "first_seen_at": now})
    return {record.family: found[record.family, record.hash] for record in records}


@dataclass(frozen=True, slots=True)
class TemplateStore:
    """Reads versions of kernel families."""

    database: Database

    def families(self) -> frozenset[str]:
        """Return the families that have or had trials."""
        with self.database.read() as connection:
            return frozenset(connection.execute(select(templates.c.family)).scalars())

    def header(self, family: str, template_hash: str) -> str:
        """Return the header of a family's version, or "" if that version isn't stored."""
        same = and_(templates.c.family == family, templates.c.hash == template_hash)
        with self.database.read() as connection:
            return connection.execute(select(templates.c.header).where(same)).scalar_one_or_none() or ""

    def params(self, family: str, template_hash: str) -> Mapping[str, Sequence[Value]]:
        """Return the values of each parameter in a family's version, or nothing if that version isn't stored."""
        params = tomllib.loads(self.header(family, template_hash)).get("params", {})
        return {name: list(param["values"]) for name, param in params.items()}


SCOPE = ("study_id", "tuning_target_id", "device_id", "environment_id", "measurement_mode")
"""the columns that identify a scope, in which trial numbers are unique"""


@dataclass(frozen=True, slots=True)
class TargetScope:
    """The scope of trials: a study's tuning target, on a device, in an environment, in a measurement mode."""

    study: StudyKey
    measurement_mode: str
    tuning_target_id: int
    device_id: int
    environment_id: int
    run_id: int
    template_ids: Mapping[str, int]
    """family to the id of its row in `templates`"""

    @property
    def identity(self) -> Values:
        """The values of the columns that identify a scope."""
        values = (self.study.id, self.tuning_target_id, self.device_id, self.environment_id, self.measurement_mode)
        return dict(zip(SCOPE, values, strict=True))

    @property
    def name(self) -> str:
        """The study's name, as on the command line."""
        return self.study.name


@dataclass(frozen=True, slots=True)
class Scope(TargetScope):
    """The scope of one layer's trials."""

    layer: Layer
    layer_id: int

    @property
    def name(self) -> str:
        """`study.layer`, as on the command line."""
        return f"{self.study.name}.{self.layer.name}"


@dataclass(frozen=True, slots=True)
class ScopeStore:
    """Opens scopes and stores what they refer to."""

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
        """Return the scope of a run's trials for one layer.

        `templates` must contain every family that the trials' configs may use.
        """
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
        """Return the scope of trials for a set of layers, used by dispatchers."""
        with self.runs.write(device, environment) as run:
            tuning_target_id = store_layer_set(run.connection, layers)
            ids = store_templates(run.connection, [template], run.now)
        return TargetScope(study, measurement_mode, tuning_target_id, run.device_id, run.environment_id, run.id, ids)
