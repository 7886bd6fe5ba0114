"""Convert rows to trials and timings, and records to rows."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import Column, Connection, RowMapping, Select, and_, select, tuple_

from autotune.devices.device import DeviceInfo, Environment
from autotune.family.source import Stage
from autotune.problem import Layer, Problem
from autotune.store.devices import device_of, environment_of
from autotune.store.rows import among, finite, record_of, rows_of, values_of
from autotune.store.schema.column_kinds import Values, seven_digits
from autotune.store.schema.tables import (
    devices,
    end_to_end_timings,
    environments,
    layers,
    measurements,
    runs,
    sources,
    studies,
    study_layers,
    templates,
    trials,
    tuning_targets,
)
from autotune.store.sources import stage_of
from autotune.store.sqlite.database import Database
from autotune.store.studies import find, layer_of
from autotune.trial import Config, EndToEndParts, ErrorStats, Outcome, Phases, Resources, Timing, Trial


def timing_values(timing: Timing) -> Values:
    """Return the columns of a measurement."""
    clocks = timing.sm_clocks_mhz
    return values_of(timing, measurements) | {
        "sample_count": len(timing.samples_us),
        "samples_us": tuple(map(seven_digits, timing.samples_us)),
        "sm_clock_mhz": statistics.median(clocks) if clocks else None,
        "sm_clocks_mhz": clocks or None,
        "power_w": finite(timing.power_w),
        "temperature_c": finite(timing.temperature_c),
    }


def timing_of(row: RowMapping) -> Timing:
    """Make the timing of a row that includes the columns of `measurements`."""
    return record_of(Timing, row, measurements, sm_clocks_mhz=row[measurements.c.sm_clocks_mhz] or ())


Origin = Literal["measured", "imported"]
"""A trial's origin: measured by a run with this database, or copied from another file."""

_RESOURCES = tuple(trials.c[field.name] for field in fields(Resources))
_OUTCOMES = {str(outcome): outcome for outcome in Outcome}
_KEPT = 4096  # number of launches that a process caches; many trials share their launches


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A stored trial and the conditions under which it was measured."""

    id: int
    """the trial's id in the database"""
    study: str
    """the study's name"""
    generation: int
    """the generation of the study; every fresh start begins another generation"""
    layer: Layer
    """the layer that was tuned"""
    device: DeviceInfo
    """the device that the trial ran on"""
    environment: Environment
    """the driver, the toolkit and the flags"""
    measurement_mode: str
    """`cold`, `hot` or `end_to_end`"""
    template_hash: str
    """hash of the files of the family's template"""
    trial: Trial
    """the config and the result"""
    started_at: datetime
    """when the trial started, UTC"""
    ended_at: datetime | None
    """when the trial ended, UTC; None while it runs"""
    reused: bool
    """whether the trial is a copy of a trial measured earlier"""
    attempts: int
    """number of times the trial was started"""
    stages: tuple[Stage, ...] = ()
    """the launches of one forward pass; empty if the config was rejected before rendering"""
    flops: int | None = None
    """FLOP of the kernel's algorithm; None for the direct convolution"""
    origin: Origin = "measured"
    """`measured` in this database, or `imported`"""
    proposed_by: str = "search"
    """source of the config: search, default, warm_start or cost_model"""
    ranking_median_us: float | None = None
    """the median of the latest measurement here, by which `best` ranks the trial; None if the trial is not ranked"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"

    @property
    def problem(self) -> Problem:
        """The layer's problem."""
        return self.layer.problem

    @property
    def median_us(self) -> float | None:
        """The median of a correct trial in microseconds, or None."""
        return self.trial.median_us

    @property
    def gflops(self) -> float | None:
        """GFLOP/s of a correct trial, counted for the direct algorithm, or None."""
        return None if self.median_us is None else gflops(self.problem, self.median_us)


def gflops(problem: Problem, time_us: float) -> float:
    """Convert a time to GFLOP/s of the direct algorithm. 1e3 converts FLOP per microsecond to GFLOP per second."""
    return problem.flops / time_us / 1e3


def outcome_values(trial: Trial) -> Values:
    """Return the columns that are filled in when a trial ends."""
    error = trial.error or ErrorStats(math.nan, math.nan)
    reported = trial.resources != Resources()
    values = values_of(trial, trials)
    del values["number"], values["config"]
    values |= {field.name: getattr(trial.resources, field.name) if reported else None for field in fields(Resources)}
    values |= {name: finite(value) or 0.0 for name, value in values_of(trial.phases, trials).items()}
    return values | {
        "outcome": str(trial.outcome),
        "occupancy": finite(trial.occupancy),
        "error_over_bound": finite(error.over_bound),
        "error_max_abs": finite(error.max_abs),
        "median_us": trial.median_us,
        "ranking_median_us": trial.median_us,
    }


def config_of(row: RowMapping) -> Config:
    """Make the config of a row that includes the columns of `trials` and `templates`."""
    return stored_config(row[templates.c.family], row[trials.c.config])


def stored_config(family: str, values: str) -> Config:
    """Make a config from its family and its parameters as JSON."""
    return Config(family, tuple(json.loads(values).items()))


def trial_of(row: RowMapping) -> Trial:
    """Make the trial of a row that includes the columns of `trials` and `measurements`, the family and the source's
    hash.
    """
    over_bound, max_abs = row[trials.c.error_over_bound], row[trials.c.error_max_abs]
    error = None
    if over_bound is not None or max_abs is not None:
        error = ErrorStats(math.nan if over_bound is None else over_bound, math.nan if max_abs is None else max_abs)
    return record_of(
        *(Trial, row, trials),
        config=config_of(row),
        outcome=_OUTCOMES[row[trials.c.outcome]],
        source_hash=row[sources.c.hash],
        resources=Resources(*(row[column] or 0 for column in _RESOURCES)),
        timing=None if row[measurements.c.id] is None else timing_of(row),
        error=error,
        phases=record_of(Phases, row, trials),
    )


@lru_cache(_KEPT)
def launched(text: str | None) -> tuple[tuple[Stage, ...], int | None]:
    """Parse a kernel's stages, and its algorithm's FLOP if that isn't the direct convolution."""
    launches = {} if text is None else json.loads(text)
    return tuple(stage_of(stage) for stage in launches.get("stages", ())), launches.get("flops")


def select_trials() -> Select[*tuple[Any, ...]]:
    """Select everything that a TrialRow needs, without a WHERE clause."""
    while_tuning = and_(
        measurements.c.trial_id == trials.c.id, measurements.c.finals_id.is_(None), measurements.c.retime_id.is_(None)
    )
    # These are outer joins, although there is always a match, so that SQLite reads the trials first.
    names = study_layers.alias("names")
    name = (
        select(names.c.name)
        .where(names.c.study_id == trials.c.study_id, names.c.tuning_target_id == trials.c.tuning_target_id)
        .order_by(names.c.position.is_(None), names.c.position)
        .limit(1)
        .scalar_subquery()
    )
    place = and_(
        study_layers.c.study_id == trials.c.study_id,
        study_layers.c.tuning_target_id == trials.c.tuning_target_id,
        study_layers.c.name == name,
    )
    return (
        select(
            *(trials, measurements, studies.c.name, studies.c.generation),
            *(layers.c.operation, layers.c.problem, layers.c.declaration),
            *(study_layers.c.name, study_layers.c["count"]),
            *(templates.c.family, templates.c.hash, sources.c.hash, sources.c.launches),
        )
        .select_from(trials)
        .outerjoin(studies, studies.c.id == trials.c.study_id)
        .join(tuning_targets, tuning_targets.c.id == trials.c.tuning_target_id)
        .join(layers, layers.c.id == tuning_targets.c.layer_id)
        .outerjoin(templates, templates.c.id == trials.c.template_id)
        .outerjoin(sources, sources.c.id == trials.c.source_id)
        .outerjoin(study_layers, place)
        .outerjoin(measurements, while_tuning)
    )


def trials_by_id(connection: Connection, ids: Iterable[int]) -> Mapping[int, TrialRow]:
    """Return the trials with these ids."""
    both = select(runs, environments).join(environments, environments.c.id == runs.c.environment_id)
    of_runs = {row[runs.c.id]: environment_of(row) for row in rows_of(connection, both)}
    of_devices = {row[devices.c.id]: device_of(row) for row in rows_of(connection, select(devices))}

    def made(row: RowMapping) -> TrialRow:
        stages, flops = launched(row[sources.c.launches])
        return record_of(
            *(TrialRow, row, trials),
            study=row[studies.c.name],
            generation=row[studies.c.generation],
            layer=layer_of(row),
            device=of_devices[row[trials.c.device_id]],
            environment=of_runs[row[trials.c.run_id]],
            template_hash=row[templates.c.hash],
            trial=trial_of(row),
            reused=row[trials.c.reused_trial_id] is not None,
            stages=stages,
            flops=flops,
        )

    statement = select_trials().where(among(trials.c.id, ids))
    return {row[trials.c.id]: made(row) for row in rows_of(connection, statement)}


def with_trials(
    connection: Connection, statement: Select[*tuple[Any, ...]], trial_id: Column[int]
) -> Iterator[tuple[RowMapping, TrialRow]]:
    """Yield a statement's rows, each with the trial that its column `trial_id` refers to."""
    rows = list(rows_of(connection, statement))
    whole = trials_by_id(connection, (row[trial_id] for row in rows))
    return ((row, whole[row[trial_id]]) for row in rows)


@dataclass(frozen=True, slots=True)
class EndToEndRow:
    """An end-to-end trial and the parts of its time."""

    row: TrialRow
    parts: EndToEndParts


def parts_values(parts: EndToEndParts) -> Values:
    """Return the columns of an end-to-end trial's parts."""
    return values_of(replace(parts, hidden_fraction=finite(parts.hidden_fraction)), end_to_end_timings)


@dataclass(frozen=True, slots=True)
class EndToEndStore:
    """Reads end-to-end trials."""

    database: Database

    def list(self, what: str | None = None) -> tuple[EndToEndRow, ...]:
        """List the end-to-end trials of each study's newest generation with the parts of their times, oldest first."""
        with self.database.read() as connection:
            pairs = [(place.study_id, place.tuning_target_id) for place in find(connection, what, self.database.shown)]
            statement = (
                select(end_to_end_timings)
                .join(trials, trials.c.id == end_to_end_timings.c.trial_id)
                .where(tuple_(trials.c.study_id, trials.c.tuning_target_id).in_(pairs))
                .order_by(trials.c.study_id, trials.c.id)
            )
            return tuple(
                EndToEndRow(trial, record_of(EndToEndParts, row, end_to_end_timings))
                for row, trial in with_trials(connection, statement, end_to_end_timings.c.trial_id)
            )
