"""What the store says of the past: the best of one study or of an earlier moment, how the best came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, func, or_, select, true

from autotune.devices.device import DeviceInfo, Environment
from autotune.store.answers import Place, current_places, trials_by_id
from autotune.store.columns import date_of
from autotune.store.merging import CHUNK
from autotune.store.records import Basis, BestRow, FinalsRow, TrialRow, Verdict
from autotune.store.rows import device_of, environment_of, timing_of
from autotune.store.tables import (
    devices,
    environments,
    finals,
    measurements,
    retimes,
    runs,
    studies,
    subjects,
    trials,
    verdicts,
)
from autotune.trial import END_TO_END, Outcome, Timing

_KEY = ("subject_id", "device_id", "accuracy", "deterministic", "policy")
"""what has a best of its own, as in the view best_trials"""
_Key = tuple[int, int, str, bool, str]


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of what is stored: one study's generation, or what had ended by a moment. Empty: everything."""

    study_id: int | None = None
    until: str | None = None

    def ended(self, ended_at: ColumnElement[str | None]) -> ColumnElement[bool]:
        """Whether something had ended by then."""
        return true() if self.until is None else ended_at <= self.until

    @property
    def admits_imported(self) -> bool:
        """Imported results stand in the study that they came with, and nowhere else."""
        return self.study_id is not None

    def holds(self, study_id: ColumnElement[int], ended_at: ColumnElement[str | None]) -> ColumnElement[bool]:
        """The condition on a row with these columns."""
        inside = true() if self.study_id is None else study_id == self.study_id
        return and_(inside, self.ended(ended_at))


@dataclass(frozen=True, slots=True)
class _Decision:
    """The trial that is the best of its key and what decided it: finals, a retime or its own measurement."""

    trial_id: int
    finals_id: int | None = None
    retime_id: int | None = None


def list_best_within(connection: Connection, places: Sequence[Place] | None, part: Slice) -> tuple[BestRow, ...]:
    """The best of a part, of these layers in their order (None: of every layer), as the view `best` finds it of all."""
    chosen = None if places is None else {place.subject_id for place in places}
    decided = {**_fastest(connection, chosen, part), **_finals_winners(connection, chosen, part)}
    rows = trials_by_id(connection, sorted({decision.trial_id for decision in decided.values()}))
    timings = {key: _timing(connection, decision) for key, decision in decided.items()}

    def row(key: _Key, place: Place | None) -> BestRow:
        decision, winner = decided[key], rows[decided[key].trial_id]
        basis: Basis = "finals" if decision.finals_id else "retime" if decision.retime_id else "median"
        study, layer = (winner.study, winner.layer) if place is None else (place.study, place.layer)
        return BestRow(study, layer, timings[key], basis, winner)

    keys = sorted(decided)
    if places is None:
        return tuple(row(key, None) for key in keys)
    return tuple(row(key, place) for place in current_places(places) for key in keys if key[0] == place.subject_id)


def _fastest(connection: Connection, chosen: set[int] | None, part: Slice) -> dict[_Key, _Decision]:
    """The correct trial with the smallest time of each key; a trial that was measured again has its latest time."""
    original = func.coalesce(trials.c.reused_trial_id, trials.c.id)
    again = retimes.alias("again")
    latest = (
        select(again.c.id)
        .where(again.c.trial_id == original, part.ended(again.c.ended_at))
        .order_by(again.c.ended_at.desc(), again.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    stands = true() if part.admits_imported else trials.c.origin == "measured"
    time_us = case((retimes.c.id.is_not(None), retimes.c.after_us), (stands, trials.c.median_us))
    # SQLite gives the other columns of the row that has the minimum.
    statement = (
        select(*(trials.c[name] for name in _KEY), trials.c.id, retimes.c.id.label("retime_id"), func.min(time_us))
        .select_from(trials)
        .outerjoin(retimes, retimes.c.id == latest)
        .where(
            trials.c.outcome == str(Outcome.CORRECT),
            trials.c.policy != END_TO_END,
            trials.c.subject_id.in_(select(subjects.c.id).where(subjects.c.layer_id.is_not(None))),
            time_us.is_not(None),
            part.holds(trials.c.study_id, trials.c.ended_at),
        )
        .group_by(*(trials.c[name] for name in _KEY))
    )
    if chosen is not None:
        statement = statement.where(trials.c.subject_id.in_(chosen))
    return {
        _key(row): _Decision(row[trials.c.id], retime_id=row["retime_id"])
        for row in connection.execute(statement).mappings()
    }


def _finals_winners(connection: Connection, chosen: set[int] | None, part: Slice) -> dict[_Key, _Decision]:
    """The winner of the latest finals of each key."""
    in_doubt = and_(finals.c.superseded_at.is_not(None), part.ended(finals.c.superseded_at))
    statement = (
        select(finals.c.id, *(trials.c[name] for name in _KEY), finals.c.winner_trial_id)
        .join(trials, trials.c.id == finals.c.winner_trial_id)
        .where(
            ~in_doubt,
            trials.c.outcome == str(Outcome.CORRECT),
            true() if part.admits_imported else finals.c.origin == "measured",
            part.holds(finals.c.study_id, finals.c.ended_at),
        )
        .order_by(finals.c.ended_at, finals.c.id)
    )
    if chosen is not None:
        statement = statement.where(finals.c.subject_id.in_(chosen))
    return {
        _key(row): _Decision(row[finals.c.winner_trial_id], finals_id=row[finals.c.id])
        for row in connection.execute(statement).mappings()
    }


def _key(row: RowMapping) -> _Key:
    subject_id, device_id, accuracy, deterministic, policy = (row[trials.c[name]] for name in _KEY)
    return (subject_id, device_id, accuracy, deterministic, policy)


def _timing(connection: Connection, decision: _Decision) -> Timing:
    """The measurement that decided; the trial's own where the finals or the retime kept none."""
    own = and_(measurements.c.finals_id.is_(None), measurements.c.retime_id.is_(None))
    if decision.retime_id is not None:  # of the original, where this trial is a copy
        decided = measurements.c.retime_id == decision.retime_id
    elif decision.finals_id is not None:
        kept = or_(own, measurements.c.finals_id == decision.finals_id)
        decided = and_(measurements.c.trial_id == decision.trial_id, kept)
    else:
        decided = and_(measurements.c.trial_id == decision.trial_id, own)
    statement = select(measurements).where(decided).order_by(measurements.c.id.desc()).limit(1)
    return timing_of(connection.execute(statement).mappings().one())


def list_improvements(connection: Connection, places: Sequence[Place]) -> tuple[TrialRow, ...]:
    """Trials that were the fastest of their layer, device, accuracy class, determinism and policy when they ended."""
    statement = (
        select(*(trials.c[name] for name in _KEY), trials.c.id, trials.c.median_us)
        .where(
            trials.c.subject_id.in_({place.subject_id for place in places}),
            trials.c.median_us.is_not(None),
            trials.c.reused_trial_id.is_(None),
            trials.c.origin == "measured",
            trials.c.policy != END_TO_END,
        )
        .order_by(trials.c.ended_at, trials.c.id)
    )
    standing: dict[_Key, float] = {}
    found = []
    for row in connection.execute(statement).mappings():
        key, median_us = _key(row), row[trials.c.median_us]
        if key not in standing or median_us < standing[key]:
            standing[key] = median_us
            found.append(row[trials.c.id])
    whole = trials_by_id(connection, found)
    return tuple(whole[trial_id] for trial_id in found)


def list_finals(connection: Connection, places: Sequence[Place]) -> tuple[FinalsRow, ...]:
    """The finals of these layers' shapes, oldest first, with what they said."""
    statement = (
        select(finals, environments, studies.c.name, studies.c.generation)
        .join(environments, environments.c.id == finals.c.environment_id)
        .join(studies, studies.c.id == finals.c.study_id)
        .where(finals.c.subject_id.in_({place.subject_id for place in places}))
        .order_by(finals.c.ended_at, finals.c.id)
    )
    rows = connection.execute(statement).mappings().all()
    ids = [row[finals.c.id] for row in rows]
    winners = trials_by_id(connection, sorted({row[finals.c.winner_trial_id] for row in rows}))
    said = _verdicts(connection, ids)
    timings = _finals_timings(connection, ids)
    found = []
    for row in rows:
        finals_id, winner_id, doubted = row[finals.c.id], row[finals.c.winner_trial_id], row[finals.c.superseded_at]
        found.append(
            FinalsRow(
                study=row[studies.c.name],
                generation=row[studies.c.generation],
                winner=winners[winner_id],
                environment=Environment(*(row[environments.c[name]] for name in ("driver", "toolkit", "flags"))),
                timing=timings.get((finals_id, winner_id)),
                verdicts=tuple(said.get(finals_id, ())),
                ended_at=date_of(row[finals.c.ended_at]),
                superseded_at=None if doubted is None else date_of(doubted),
                origin=row[finals.c.origin],
            )
        )
    return tuple(found)


def _verdicts(connection: Connection, ids: Sequence[int]) -> dict[int, list[Verdict]]:
    against = trials.alias("against")
    found: dict[int, list[Verdict]] = {}
    for start in range(0, len(ids), CHUNK):
        statement = (
            select(verdicts, against.c.number)
            .outerjoin(against, against.c.id == verdicts.c.against_trial_id)
            .where(verdicts.c.finals_id.in_(ids[start : start + CHUNK]))
            .order_by(verdicts.c.id)
        )
        for row in connection.execute(statement):
            verdict = Verdict(row.against, row.verdict, row.median_us, row.against_us, row.number, row.against_accuracy)
            found.setdefault(row.finals_id, []).append(verdict)
    return found


def _finals_timings(connection: Connection, ids: Sequence[int]) -> dict[tuple[int, int], Timing]:
    found = {}
    for start in range(0, len(ids), CHUNK):
        statement = select(measurements).where(measurements.c.finals_id.in_(ids[start : start + CHUNK]))
        for row in connection.execute(statement).mappings():
            found[row[measurements.c.finals_id], row[measurements.c.trial_id]] = timing_of(row)
    return found


def latest_timings(connection: Connection, trial_ids: Sequence[int]) -> dict[int, Timing]:
    """The latest measurement of each trial that has one."""
    found = {}
    for start in range(0, len(trial_ids), CHUNK):
        chunk = measurements.c.trial_id.in_(trial_ids[start : start + CHUNK])
        for row in connection.execute(select(measurements).where(chunk).order_by(measurements.c.id)).mappings():
            found[row[measurements.c.trial_id]] = timing_of(row)
    return found


def list_devices(connection: Connection) -> tuple[DeviceInfo, ...]:
    """Every recorded device, in the order first seen."""
    statement = select(devices).order_by(devices.c.id)
    return tuple(device_of(row) for row in connection.execute(statement).mappings())


def list_environments(connection: Connection) -> tuple[tuple[DeviceInfo, Environment], ...]:
    """Each device that ran something, with the environment of its newest run."""
    statement = (
        select(devices, runs, environments)
        .join(runs, runs.c.device_id == devices.c.id)
        .join(environments, environments.c.id == runs.c.environment_id)
        .order_by(runs.c.started_at, runs.c.id)
    )
    newest = {row[devices.c.id]: row for row in connection.execute(statement).mappings()}
    return tuple((device_of(row), environment_of(row)) for row in newest.values())
