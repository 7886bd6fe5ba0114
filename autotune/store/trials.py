"""Trials as rows: the table, its record and how each becomes the other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    ForeignKey,
    Integer,
    RowMapping,
    Select,
    Table,
    UniqueConstraint,
    and_,
    bindparam,
    func,
    select,
)

from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import shortened
from autotune.family.source import Stage
from autotune.problem import Layer, Problem
from autotune.store.column_types import (
    Text,
    Values,
    date_of,
    finite,
    flag,
    integer,
    metadata,
    real,
    reference,
    row_id,
    text,
)
from autotune.store.configs import config_from
from autotune.store.devices import device_of, devices, environment_of, environments, runs
from autotune.store.layers import layers, problem_of, subjects
from autotune.store.measurements import TIMING_COLUMNS, measurements, timing_from
from autotune.store.scopes import scope_columns
from autotune.store.sources import sources, stage_of
from autotune.store.statements import chunks, rows_of, texts_tuples_of, tuples_of
from autotune.store.studies import studies, study_layers
from autotune.store.templates import templates
from autotune.trial import ACCURACY_CLASSES, Config, ErrorStats, Outcome, Phases, Resources, Trial

Origin = Literal["measured", "imported"]
"""Where a trial comes from: tuned into this database, or brought in from another file."""

MOST_KEPT = 4096
"""records that many trials share, of one kind, which are kept while trials are read"""

LARGEST_NUMBER = 2**53
"""of a trial, far from where SQLite's integers end"""

CLASSES = frozenset(("", *ACCURACY_CLASSES))
"""of accuracy, and none: of what was not rendered, of layers with their copies, of recorded spaces"""

Key = TypeVar("Key")

Record = TypeVar("Record")

trials = Table(
    "trials",
    metadata,
    row_id(),
    *scope_columns(),
    integer("number"),
    reference("run_id", "runs.id"),
    reference("template_id", "templates.id"),
    text("config"),
    Column("source_id", ForeignKey("sources.id")),
    Column("reused_trial_id", ForeignKey("trials.id")),
    integer("attempts"),
    text("outcome"),
    text("reason"),
    text("message"),
    text("accuracy"),
    flag("deterministic"),
    *(Column(name, Integer) for name in ("registers", "spill_bytes", "static_smem_bytes", "constant_bytes")),
    integer("smem_bytes"),
    *(Column(name, Float) for name in ("occupancy", "error_over_bound", "error_max_abs", "median_us")),
    *(real(name) for name in ("render_us", "compile_us", "load_us", "verify_us", "measure_us")),
    text("started_at"),
    Column("ended_at", Text),
    *(text(name) for name in ("origin", "proposed_by")),
    Column("ranked_us", Float),
    UniqueConstraint("study_id", "subject_id", "device_id", "environment_id", "policy", "number"),
)


_OWN = tuple(
    trials.c[name]
    for name in (
        *("number", "config", "outcome", "reason", "message", "accuracy", "deterministic"),
        *("registers", "spill_bytes", "static_smem_bytes", "constant_bytes", "smem_bytes"),
        *("occupancy", "error_over_bound", "error_max_abs"),
        *("render_us", "compile_us", "load_us", "verify_us", "measure_us"),
    )
)
TRIAL_COLUMNS = (*_OWN, templates.c.family, sources.c.hash, measurements.c.id, *TIMING_COLUMNS)
"""What `trial_from` takes, in this order."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial with everything it was made under."""

    id: int
    study: str
    generation: int
    layer: Layer
    device: DeviceInfo
    environment: Environment
    policy: str
    template_hash: str
    trial: Trial
    started_at: datetime
    ended_at: datetime | None
    reused: bool
    """a copy of a trial measured earlier"""
    attempts: int
    stages: tuple[Stage, ...] = ()
    """the launches of one round of the forward pass; none when rejected before rendering"""
    flops: int | None = None
    """of the kernel's algorithm, where they are not the direct convolution's"""
    origin: Origin = "measured"
    proposed_by: str = "search"
    """what asked for it: search, default, warm_start, prior"""
    ranked_us: float | None = None
    """the median of its latest measurement here, by which `best` ranks it; None for a trial that does not count"""
    sequence: int = 0
    """the place of its measurement among all of the database's, which no clock decides; 0 without one"""

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
        """The median of a correct trial, else None."""
        return self.trial.median_us

    @property
    def gflops(self) -> float | None:
        """Direct-algorithm GFLOP/s of a correct trial, else None."""
        return None if self.median_us is None else gflops(self.problem, self.median_us)


def gflops(problem: Problem, time_us: float) -> float:
    """GFLOP/s of the direct algorithm at a time; 1e3 from FLOP per microsecond to GFLOP per second."""
    return problem.flops / time_us / 1e3


def outcome_values(trial: Trial) -> Values:
    """The columns that the end of a trial fills. Raises StoreError for a correct trial's time that is no number."""
    error = trial.error or ErrorStats(math.nan, math.nan)
    resources = trial.resources
    reported = resources != Resources()
    values: Values = {
        "outcome": str(trial.outcome),
        "reason": trial.reason,
        "message": trial.message,
        "accuracy": trial.accuracy,
        "deterministic": trial.deterministic,
        "registers": resources.registers if reported else None,
        "spill_bytes": resources.spill_bytes if reported else None,
        "static_smem_bytes": resources.static_smem_bytes if reported else None,
        "constant_bytes": resources.constant_bytes if reported else None,
        "smem_bytes": trial.smem_bytes,
        "occupancy": finite(trial.occupancy),
        "error_over_bound": finite(error.over_bound),
        "error_max_abs": finite(error.max_abs),
        "median_us": trial.median_us,
        "ranked_us": trial.median_us,
    }
    for phase in fields(Phases):  # asdict would copy deeply
        values[phase.name] = finite(getattr(trial.phases, phase.name)) or 0.0
    return values


def config_of(row: RowMapping) -> Config:
    """The config of a row that has the columns of `trials` and `templates`."""
    return config_from(row[templates.c.family], row[trials.c.config])


def trial_of(row: RowMapping) -> Trial:
    """The trial of a row that has TRIAL_COLUMNS."""
    return trial_from([row[column] for column in TRIAL_COLUMNS])


def trial_from(values: Sequence[Any]) -> Trial:
    """The trial of what TRIAL_COLUMNS say. Raises ValueError or TypeError for what is none."""
    number, config, outcome, reason, message, accuracy, deterministic = values[:7]
    registers, spill_bytes, static_smem_bytes, constant_bytes, smem_bytes = values[7:12]
    occupancy, over_bound, max_abs = values[12:15]
    family, source_hash, measurement = values[_PHASES_END : _PHASES_END + 3]
    if not 0 <= number <= LARGEST_NUMBER:
        raise ValueError(f"trial {number} is beyond the largest number")
    if accuracy not in CLASSES:
        raise ValueError(f"accuracy {shortened(accuracy)} is no class")
    error = None
    if over_bound is not None or max_abs is not None:
        error = ErrorStats(math.nan if over_bound is None else over_bound, math.nan if max_abs is None else max_abs)
    return Trial(
        number=number,
        config=config_from(family, config),
        outcome=Outcome(outcome),
        reason=reason,
        message=message,
        source_hash=source_hash,
        accuracy=accuracy,
        deterministic=bool(deterministic),
        resources=Resources(registers or 0, spill_bytes or 0, static_smem_bytes or 0, constant_bytes or 0),
        smem_bytes=smem_bytes,
        occupancy=occupancy,
        timing=None if measurement is None else timing_from(values[_PHASES_END + 3 :]),
        error=error,
        phases=Phases(*values[15:_PHASES_END]),
    )


_PHASES_END = len(_OWN)

_ROW_COLUMNS = (
    *(trials.c[name] for name in ("id", "device_id", "run_id", "policy", "started_at", "ended_at")),
    *(trials.c[name] for name in ("reused_trial_id", "attempts", "origin", "proposed_by", "ranked_us")),
    *(studies.c.name, studies.c.generation, layers.c.id, study_layers.c.name, study_layers.c.count),
    *(templates.c.hash, sources.c.launches),
)
_MADE_OF = len(_ROW_COLUMNS)
"""where TRIAL_COLUMNS begin in a row of `select_trials`"""


class TrialRows:
    """Makes trials of rows of `select_trials`.

    What many of them share, such as their device, is read and made once: that takes longer than the rest of a trial.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._problems = _Made[int, Problem](lambda row_id: problem_of(self._row(select(layers), layers, row_id)))
        self._layers = _Made[tuple[int, str | None, int | None], Layer](self._layer)
        self._devices = _Made[int, DeviceInfo](lambda row_id: device_of(self._row(select(devices), devices, row_id)))
        self._environments = _Made[int, Environment](self._environment)
        self._launches = _Made[str | None, tuple[tuple[Stage, ...], int | None]](_launched)

    def of(self, values: Sequence[Any]) -> TrialRow:
        """The trial of a row. Raises ValueError for one that refers to nothing."""
        trial_id, device_id, run_id, policy, started_at, ended_at = values[:6]
        reused, attempts, origin, proposed_by, ranked_us = values[6:11]
        study, generation, layer_id, layer, count, template_hash, launches = values[11:_MADE_OF]
        if study is None:
            raise ValueError(f"trial {trial_id} is of a study that is not there")
        made = values[_MADE_OF:]
        stages, flops = self._launches[launches]
        return TrialRow(
            id=trial_id,
            study=study,
            generation=generation,
            layer=self._layers[layer_id, layer, count],
            device=self._devices[device_id],
            environment=self._environments[run_id],
            policy=policy,
            template_hash=template_hash,
            trial=trial_from(made),
            started_at=date_of(started_at),
            ended_at=None if ended_at is None else date_of(ended_at),
            reused=reused is not None,
            attempts=attempts,
            stages=stages,
            flops=flops,
            origin=origin,
            proposed_by=proposed_by,
            ranked_us=ranked_us,
            sequence=made[_PHASES_END + 2] or 0,
        )

    def _layer(self, which: tuple[int, str | None, int | None]) -> Layer:
        layer_id, name, count = which
        return Layer(name or "", self._problems[layer_id], count or 1)

    def _environment(self, run_id: int) -> Environment:
        both = select(runs, environments).join(environments, environments.c.id == runs.c.environment_id)
        return environment_of(self._row(both, runs, run_id))

    def _row(self, statement: Select[*tuple[object, ...]], table: Table, row_id: int) -> RowMapping:
        found = next(rows_of(self._connection, statement.where(table.c.id == row_id)), None)
        if found is None:
            raise ValueError(f"{table.name} has no row {row_id}")
        return found

    def all(self, statement: Select[*tuple[object, ...]]) -> tuple[TrialRow, ...]:
        """The trials that a statement made of `select_trials` yields."""
        return tuple(self.of(row) for row in tuples_of(self._connection, statement))


class _Made(dict[Key, Record]):
    """Records by what they are made of, each made when it is first asked for."""

    def __init__(self, make: Callable[[Key], Record]) -> None:
        self._make = make

    def __missing__(self, key: Key) -> Record:
        if len(self) > MOST_KEPT:
            self.clear()
        made = self[key] = self._make(key)
        return made


def _launched(text: str | None) -> tuple[tuple[Stage, ...], int | None]:
    """A kernel's stages, and its operations where they are not those of the direct convolution."""
    launches = {} if text is None else json.loads(text)
    return tuple(stage_of(stage) for stage in launches.get("stages", ())), launches.get("flops")


def select_trials() -> Select[*tuple[object, ...]]:
    """Everything that a TrialRow needs, without a WHERE."""
    # Outer joins where there is always a match: SQLite reads the trials first then, and does not try every device
    # with every environment, run, template and study.
    names = study_layers.alias("names")
    name = (
        select(names.c.name)
        .where(names.c.study_id == trials.c.study_id, names.c.subject_id == trials.c.subject_id)
        .order_by(names.c.position.is_(None), names.c.position)
        .limit(1)
        .scalar_subquery()
    )
    return (
        select(*_ROW_COLUMNS, *TRIAL_COLUMNS)
        .select_from(trials)
        .outerjoin(studies, studies.c.id == trials.c.study_id)
        .join(subjects, subjects.c.id == trials.c.subject_id)
        .join(layers, layers.c.id == subjects.c.layer_id)
        .outerjoin(devices, devices.c.id == trials.c.device_id)
        .outerjoin(templates, templates.c.id == trials.c.template_id)
        .outerjoin(sources, sources.c.id == trials.c.source_id)
        .outerjoin(
            study_layers,
            and_(
                study_layers.c.study_id == trials.c.study_id,
                study_layers.c.subject_id == trials.c.subject_id,
                study_layers.c.name == name,
            ),
        )
        .outerjoin(
            measurements,
            while_tuning(),
        )
    )


def while_tuning() -> ColumnElement[bool]:
    """Whether a measurement is the one that its trial was tuned with: later ones are of finals and retimes."""
    return and_(
        measurements.c.trial_id == trials.c.id, measurements.c.finals_id.is_(None), measurements.c.retime_id.is_(None)
    )


def trials_by_id(connection: Connection, ids: Iterable[int], made: TrialRows | None = None) -> dict[int, TrialRow]:
    """The trials with these ids; `made` has what they share with those that came before."""
    found: dict[int, TrialRow] = {}
    made = TrialRows(connection) if made is None else made
    for chunk in chunks(sorted(set(ids))):
        for values in texts_tuples_of(connection, _by_ids(), {"ids": json.dumps(chunk)}):
            row = made.of(values)
            found[row.id] = row
    return found


@cache
def _by_ids() -> Select[*tuple[object, ...]]:
    """The trials whose ids a JSON array has: one text however many they are."""
    each = func.json_each(bindparam("ids")).table_valued("value")
    return select_trials().where(trials.c.id.in_(select(each.c.value)))


def with_trials(
    connection: Connection, statement: Select[*tuple[object, ...]], trial_id: Column[int]
) -> list[tuple[RowMapping, TrialRow]]:
    """What a statement yields, each row with the trial that one of its columns names."""
    rows = list(rows_of(connection, statement))
    whole = trials_by_id(connection, (row[trial_id] for row in rows))
    return [(row, whole[row[trial_id]]) for row in rows]
