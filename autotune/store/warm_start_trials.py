"""The fastest trials of every layer and device, as starting points for other layers' searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from autotune.devices.device import DeviceInfo
from autotune.problem import Problem
from autotune.store.devices import device_of
from autotune.store.layers import stored_problem
from autotune.store.rows import rows_of
from autotune.store.run_context import Scope
from autotune.store.schema.tables import devices, layers, studies, study_layers, templates, trials, tuning_targets
from autotune.store.sqlite.database import Database
from autotune.store.trials import stored_config
from autotune.trial import Config

PER_FAMILY = 60
"""Number of a family's fastest trials on one layer and device to return."""


@dataclass(frozen=True, slots=True)
class TopTrial:
    """One of a family's fastest trials on a layer and device."""

    name: str
    """`study.layer` in a study that has the layer"""
    problem: Problem
    device: DeviceInfo
    config: Config
    median_us: float


@dataclass(frozen=True, slots=True)
class TopTrialStore:
    """Finds the fastest trials for every layer and device."""

    database: Database

    def list(self, scope: Scope | None, *, kinds: Sequence[str], accuracies: Sequence[str]) -> tuple[TopTrial, ...]:
        """Return the fastest trials for each layer, device and family, fastest first.

        Only devices of these `kinds` and kernels of these `accuracies` are included. With a scope, only trials older
        than its first one are included, so that a resumed run starts from the same trials as the original run. If the
        scope's study was started afresh, trials older than that are left out. Without a scope, all trials with a cold
        cache are included.
        """
        rank = func.row_number().over(
            partition_by=(trials.c.tuning_target_id, trials.c.device_id, templates.c.family),
            order_by=(trials.c.median_us, trials.c.id),
        )
        ranked = (
            select(trials.c.id, rank.label("rank"))
            .join(devices, devices.c.id == trials.c.device_id)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(
                trials.c.median_us > 0,
                trials.c.measurement_mode == ("cold" if scope is None else scope.measurement_mode),
                trials.c.accuracy.in_(accuracies),
                devices.c.kind.in_(kinds),
                *(_before(scope) if scope else ()),
            )
        )
        best = ranked.subquery()
        name = (
            select(studies.c.name + "." + study_layers.c.name)
            .join(study_layers, study_layers.c.study_id == studies.c.id)
            .where(studies.c.id == trials.c.study_id, study_layers.c.tuning_target_id == trials.c.tuning_target_id)
            .limit(1)
            .scalar_subquery()
            .label("place")
        )
        statement = (
            select(
                *(name, layers.c.operation, layers.c.problem, layers.c.declaration),
                *(trials.c.device_id, templates.c.family, trials.c.config, trials.c.median_us),
            )
            .select_from(trials)
            .join(best, best.c.id == trials.c.id)
            .join(tuning_targets, tuning_targets.c.id == trials.c.tuning_target_id)
            .join(layers, layers.c.id == tuning_targets.c.layer_id)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(best.c.rank <= PER_FAMILY)
            .order_by(trials.c.median_us, trials.c.id)
        )
        with self.database.read() as connection:
            of_devices = {row[devices.c.id]: device_of(row) for row in rows_of(connection, select(devices))}
            return tuple(
                TopTrial(place or "", stored_problem(*layer), of_devices[device], stored_config(family, text), time_us)
                for place, *layer, device, family, text, time_us in connection.execute(statement)
            )


def _before(scope: Scope) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that a trial is older than a scope's first one, and newer than the study's fresh start."""
    own = (
        select(func.min(trials.c.id))
        .where(
            trials.c.study_id == scope.study.id,
            trials.c.tuning_target_id == scope.tuning_target_id,
            trials.c.device_id == scope.device_id,
            trials.c.measurement_mode == scope.measurement_mode,
        )
        .scalar_subquery()
    )
    yield (own.is_(None)) | (trials.c.id < own)
    if scope.study.fresh_after is not None:
        yield trials.c.id > scope.study.fresh_after
