"""Finals: interleaved measurements of the finalists, the winner, and its verdicts against other kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, RowMapping, and_, exists, func, select, text, update

from autotune.devices.device import Environment
from autotune.errors import StoreError
from autotune.store.rows import among, insert, record_of, rows_of, values_of
from autotune.store.run_context import Scope
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import environments, finals, measurements, studies, trials, verdicts
from autotune.store.sqlite.database import Database
from autotune.store.studies import find, target_ids
from autotune.store.trial_store import within
from autotune.store.trials import Origin, TrialRow, timing_of, timing_values, with_trials
from autotune.trial import Timing

BASELINE = "baseline "
"""Prefix for a comparison with a baseline family, followed by the family's name."""

_CURRENT = text("""\
WITH held AS (
    SELECT finals.id, finals.origin = 'measured' AND superseded_at IS NULL AND ranking_median_us IS NOT NULL AS decides
    FROM finals JOIN trials ON trials.id = winner_trial_id
    WHERE finals.tuning_target_id = :tuning_target_id AND finals.device_id = :device_id
        AND finals.measurement_mode = :measurement_mode
)
SELECT EXISTS (SELECT 1 FROM held WHERE decides) AND NOT EXISTS (
    SELECT 1 FROM trials JOIN measurements ON trial_id = trials.id AND finals_id IS NULL AND retime_id IS NULL
    WHERE study_id = :study_id AND tuning_target_id = :tuning_target_id AND device_id = :device_id
        AND measurement_mode = :measurement_mode AND outcome = 'correct' AND reused_trial_id IS NULL
        AND measurements.id > (SELECT max(id) FROM measurements WHERE finals_id IN (SELECT id FROM held)))""")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the winner of the finals compares with another kernel, by interleaved measurements."""

    against: str
    """the other kernel: `default`, `previous best`, `cudnn nhwc`, `baseline FAMILY`, ..."""
    verdict: str
    """win, tie or loss of the winner"""
    median_us: float
    against_us: float
    against_number: int | None = None
    """the number of the other kernel's trial, if it belongs to this scope"""
    against_accuracy: str | None = None
    """the accuracy class of the other kernel; None if it was not recorded"""

    @property
    def is_rival(self) -> bool:
        """Whether the other kernel is one that a user would run without autotune, from a library or a baseline
        family.
        """
        return self.against_number is None or self.against.startswith(BASELINE)

    @property
    def rival(self) -> str:
        """The name of the library or baseline family."""
        return self.against.removeprefix(BASELINE).split()[0]


@dataclass(frozen=True, slots=True)
class Finals:
    """Finals to store: the winner's trial number, every finalist's interleaved timing, and the verdicts."""

    winner: int
    timings: tuple[tuple[int, Timing], ...]
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class FinalsRow:
    """Stored finals: the winner, the timings and the verdicts."""

    study: str
    generation: int
    winner: TrialRow
    environment: Environment
    timing: Timing
    """the winner's timing"""
    timings: tuple[tuple[int, Timing], ...]
    """trial id and timing of every finalist, in the order stored"""
    verdicts: tuple[Verdict, ...]
    ended_at: datetime
    superseded_at: datetime | None
    """when a retime contradicted these finals; None while they count"""
    origin: Origin

    @property
    def time_us(self) -> float:
        """The winner's median in these finals, in microseconds."""
        return self.timing.median_us


def supersede_finals(connection: Connection, trial: RowMapping, now: datetime) -> None:
    """Supersede the finals for this trial's layer, device, measurement mode, accuracy class and determinism."""
    same_key = [
        finals.c[name] == trial[trials.c[name]] for name in ("tuning_target_id", "device_id", "measurement_mode")
    ]
    same_class = [trials.c[name] == trial[trials.c[name]] for name in ("accuracy", "deterministic")]
    won = exists().where(trials.c.id == finals.c.winner_trial_id, *same_class)
    connection.execute(update(finals).where(*same_key, finals.c.superseded_at.is_(None), won).values(superseded_at=now))


def _correct_trial(connection: Connection, scope: Scope, number: int) -> int:
    correct = and_(within(scope), trials.c.number == number, trials.c.median_us.is_not(None))
    trial_id = connection.execute(select(trials.c.id).where(correct)).scalar_one_or_none()
    if trial_id is None:
        raise StoreError(f"{scope.name}: finals name trial {number}, which is not a correct trial of this layer")
    return int(trial_id)


def _verdicts(connection: Connection, ids: Sequence[int]) -> dict[int, list[Verdict]]:
    against = trials.alias("against")
    found: dict[int, list[Verdict]] = {}
    statement = (
        select(verdicts, against.c.number)
        .outerjoin(against, against.c.id == verdicts.c.against_trial_id)
        .where(among(verdicts.c.finals_id, ids))
        .order_by(verdicts.c.id)
    )
    for row in rows_of(connection, statement):
        verdict = record_of(Verdict, row, verdicts, against_number=row[against.c.number])
        found.setdefault(row[verdicts.c.finals_id], []).append(verdict)
    return found


def _timings(connection: Connection, ids: Sequence[int]) -> dict[int, dict[int, Timing]]:
    """Return each trial's timing, for each of the finals."""
    found: dict[int, dict[int, Timing]] = {}
    statement = select(measurements).where(among(measurements.c.finals_id, ids)).order_by(measurements.c.id)
    for row in rows_of(connection, statement):
        found.setdefault(row[measurements.c.finals_id], {})[row[measurements.c.trial_id]] = timing_of(row)
    return found


@dataclass(frozen=True, slots=True)
class FinalsStore:
    """Stores and lists finals."""

    database: Database

    def add(self, scope: Scope, record: Finals) -> None:
        """Store finals: the interleaved timings of all finalists, the winner and the verdicts.

        Raises StoreError if a number doesn't belong to a correct trial of the layer.
        """
        with self.database.write() as connection:
            winner_id = _correct_trial(connection, scope, record.winner)
            decided: Values = {"winner_trial_id": winner_id, "ended_at": self.database.now()}
            finals_id = insert(connection, finals, {**scope.identity, **decided})
            winner = update(trials).where(trials.c.id == winner_id)
            connection.execute(
                winner.values(ranking_median_us=func.coalesce(trials.c.ranking_median_us, trials.c.median_us))
            )
            for number, timing in record.timings:
                trial_id = _correct_trial(connection, scope, number)
                values = timing_values(timing)
                insert(connection, measurements, {"trial_id": trial_id, "finals_id": finals_id, **values})
                connection.execute(
                    update(trials).where(trials.c.id == trial_id).values(ranking_median_us=timing.median_us)
                )
            for verdict in record.verdicts:
                insert(connection, verdicts, {"finals_id": finals_id, **_verdict_values(connection, scope, verdict)})

    def are_current(self, scope: Scope) -> bool:
        """Return whether finals decide the best kernel for the scope's layer, and the study has no newer
        correct trial.
        """
        values = scope.identity
        del values["environment_id"]
        with self.database.read() as connection:
            return bool(connection.execute(_CURRENT, values).scalar_one())

    def list(self, what: str | None = None) -> tuple[FinalsRow, ...]:
        """List all finals for layers with these shapes in any study, oldest first, with their results."""
        with self.database.read() as connection:
            statement = (
                select(finals, environments, studies.c.name, studies.c.generation)
                .join(environments, environments.c.id == finals.c.environment_id)
                .join(studies, studies.c.id == finals.c.study_id)
                .where(finals.c.tuning_target_id.in_(target_ids(find(connection, what, self.database.shown))))
                .order_by(finals.c.id)
            )
            rows = list(with_trials(connection, statement, finals.c.winner_trial_id))
            ids = [row[finals.c.id] for row, _winner in rows]
            said, timings = _verdicts(connection, ids), _timings(connection, ids)
            return tuple(
                _row(row, winner, timings.get(row[finals.c.id], {}), said.get(row[finals.c.id], ()))
                for row, winner in rows
            )


def _verdict_values(connection: Connection, scope: Scope, verdict: Verdict) -> Values:
    number = verdict.against_number
    against = None if number is None else _correct_trial(connection, scope, number)
    return {**values_of(verdict, verdicts), "against_trial_id": against}


def _row(row: RowMapping, winner: TrialRow, timings: Mapping[int, Timing], against: Sequence[Verdict]) -> FinalsRow:
    return record_of(
        *(FinalsRow, row, finals, studies),
        study=row[studies.c.name],
        winner=winner,
        environment=record_of(Environment, row, environments),
        timing=timings[winner.id],
        timings=tuple(timings.items()),
        verdicts=tuple(against),
    )
