"""Trials as rows: the table, its record and how each becomes the other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from types import SimpleNamespace
from typing import Literal, TypeVar

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
    select,
)

from autotune.devices.device import DeviceInfo, Environment
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
from autotune.store.devices import device_of, devices, environment_of, environments, runs
from autotune.store.layers import layers, subjects
from autotune.store.measurements import measurements, timing_of
from autotune.store.scopes import scope_columns
from autotune.store.sources import sources, stage_of
from autotune.store.statements import chunks, rows_of
from autotune.store.studies import layer_of, studies, study_layers
from autotune.store.templates import templates
from autotune.trial import Config, ErrorStats, Outcome, Phases, Resources, Trial

Origin = Literal["measured", "imported"]
"""Where a trial comes from: tuned into this database, or brought in from another file."""

LARGEST_NUMBER = 2**53
"""of a trial, far from where SQLite's integers end"""

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


_COLUMN = SimpleNamespace(**trials.c)
"""the same columns: `trials.c` looks each up in Python, which took a third of the time that a trial takes to make"""


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
    return config_from(row[templates.c.family], row[_COLUMN.config])


def config_from(family: str, text: str) -> Config:
    """A family's config from its JSON. Raises ValueError for what is none."""
    values = json.loads(text)
    if not isinstance(values, dict) or not _are_plain(values.values()):
        raise ValueError(f"config {text[:40]} is not an object of numbers, words and flags")
    return Config.of(family, values)


_PLAIN = frozenset((str, bool, float, int))


def _are_plain(values: Collection[object]) -> bool:
    if not _PLAIN.issuperset(map(type, values)):
        return False
    return all(-(2**63) < value < 2**63 for value in values if isinstance(value, int))


def trial_of(row: RowMapping) -> Trial:
    """The trial of a row that has the columns of `trials`, `templates`, `sources` and `measurements`."""
    column = _COLUMN
    if not 0 <= row[column.number] <= LARGEST_NUMBER:
        raise ValueError(f"trial {row[column.number]} is beyond the largest number")
    over_bound, max_abs = row[column.error_over_bound], row[column.error_max_abs]
    error = None
    if over_bound is not None or max_abs is not None:
        error = ErrorStats(math.nan if over_bound is None else over_bound, math.nan if max_abs is None else max_abs)
    return Trial(
        number=row[column.number],
        config=config_of(row),
        outcome=Outcome(row[column.outcome]),
        reason=row[column.reason],
        message=row[column.message],
        source_hash=row[sources.c.hash],
        accuracy=row[column.accuracy],
        deterministic=row[column.deterministic],
        resources=Resources(
            registers=row[column.registers] or 0,
            spill_bytes=row[column.spill_bytes] or 0,
            static_smem_bytes=row[column.static_smem_bytes] or 0,
            constant_bytes=row[column.constant_bytes] or 0,
        ),
        smem_bytes=row[column.smem_bytes],
        occupancy=row[column.occupancy],
        timing=None if row[measurements.c.id] is None else timing_of(row),
        error=error,
        phases=Phases(
            render_us=row[column.render_us],
            compile_us=row[column.compile_us],
            load_us=row[column.load_us],
            verify_us=row[column.verify_us],
            measure_us=row[column.measure_us],
        ),
    )


class TrialRows:
    """Makes trials of rows that have the columns of every table joined in `answers`.

    What many of them share, such as their device, is made once: it takes longer than all the rest of a trial.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[int, str | None, int | None], Layer] = {}
        self._devices: dict[int, DeviceInfo] = {}
        self._environments: dict[int, Environment] = {}
        self._stages: dict[str | None, tuple[Stage, ...]] = {}
        self._flops: dict[str | None, int | None] = {}

    def of(self, row: RowMapping) -> TrialRow:
        """The trial of a row."""
        column = _COLUMN
        ended_at: str | None = row[column.ended_at]
        layer = row[layers.c.id], row[study_layers.c.name], row[study_layers.c.count]
        launches = row[sources.c.launches]
        return TrialRow(
            id=row[column.id],
            study=row[studies.c.name],
            generation=row[studies.c.generation],
            layer=_once(self._layers, layer, lambda: layer_of(row)),
            device=_once(self._devices, row[column.device_id], lambda: device_of(row)),
            environment=_once(self._environments, row[column.run_id], lambda: environment_of(row)),
            policy=row[column.policy],
            template_hash=row[templates.c.hash],
            trial=trial_of(row),
            started_at=date_of(row[column.started_at]),
            ended_at=None if ended_at is None else date_of(ended_at),
            reused=row[column.reused_trial_id] is not None,
            attempts=row[column.attempts],
            stages=_once(self._stages, launches, lambda: _stages_of(launches)),
            flops=_once(self._flops, launches, lambda: None if launches is None else json.loads(launches).get("flops")),
            origin=row[column.origin],
            proposed_by=row[column.proposed_by],
            ranked_us=row[column.ranked_us],
            sequence=row[measurements.c.id] or 0,
        )

    def all(self, connection: Connection, statement: Select[*tuple[object, ...]]) -> tuple[TrialRow, ...]:
        """The trials that a statement made of `select_trials` yields."""
        return tuple(self.of(row) for row in rows_of(connection, statement))


def _once(made: dict[Key, Record], key: Key, make: Callable[[], Record]) -> Record:
    if key not in made:
        made[key] = make()
    return made[key]


def _stages_of(launches: str | None) -> tuple[Stage, ...]:
    return () if launches is None else tuple(stage_of(stage) for stage in json.loads(launches).get("stages", ()))


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
        select(
            *(trials, studies, layers, devices, environments, runs, templates),
            *(sources.c.hash, sources.c.launches, study_layers, measurements),
        )
        .select_from(trials)
        .outerjoin(studies, studies.c.id == trials.c.study_id)
        .join(subjects, subjects.c.id == trials.c.subject_id)
        .join(layers, layers.c.id == subjects.c.layer_id)
        .outerjoin(devices, devices.c.id == trials.c.device_id)
        .outerjoin(environments, environments.c.id == trials.c.environment_id)
        .outerjoin(runs, runs.c.id == trials.c.run_id)
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
    made = TrialRows() if made is None else made
    for chunk in chunks(sorted(set(ids))):
        for row in rows_of(connection, select_trials().where(trials.c.id.in_(chunk))):
            found[row[trials.c.id]] = made.of(row)
    return found


def with_trials(
    connection: Connection, statement: Select[*tuple[object, ...]], trial_id: Column[int]
) -> list[tuple[RowMapping, TrialRow]]:
    """What a statement yields, each row with the trial that one of its columns names."""
    rows = list(rows_of(connection, statement))
    whole = trials_by_id(connection, (row[trial_id] for row in rows))
    return [(row, whole[row[trial_id]]) for row in rows]
