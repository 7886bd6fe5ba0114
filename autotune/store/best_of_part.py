"""The best kernels of a part of a database: of one study, or as they stood at an earlier moment."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    func,
    null,
    or_,
    select,
    true,
)

from autotune.errors import StoreWarning
from autotune.store.best_rows import KEY, Basis, BestRow, Key, key_of
from autotune.store.finals import finals
from autotune.store.layers import subjects
from autotune.store.measurements import measurements, timing_of
from autotune.store.retimes import retimes
from autotune.store.sqlite.database import Database
from autotune.store.statements import chunks, rows_of
from autotune.store.studies import Place, current_places, studies
from autotune.store.trials import trials, trials_by_id
from autotune.store.unreadable import NAMED
from autotune.trial import END_TO_END, LONG_US, Outcome, Timing


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
    """The trial that is the best of its key and what decided it: finals, a later measurement or its own."""

    trial_id: int
    finals_id: int | None = None
    again_id: int | None = None
    """a measurement after its own, of the original where this trial is a copy"""
    retimed: bool = False


def best_within(
    database: Database, connection: Connection, places: Sequence[Place] | None, part: Slice
) -> tuple[BestRow, ...]:
    """The best of a part, of these layers in their order (None: of every layer), as the view `best` finds it of all.

    One whose measurements are gone is left out and named.
    """
    chosen = None if places is None else {place.subject_id for place in places}
    decided = {**_fastest(connection, chosen, part), **_finals_winners(connection, chosen, part)}
    rows = trials_by_id(connection, (decision.trial_id for decision in decided.values()))
    found = {key: _timing(connection, decision) for key, decision in decided.items()}
    timings = {key: timing for key, timing in found.items() if timing is not None}
    gone = sorted({decision.trial_id for key, decision in decided.items() if key not in timings})
    if gone:
        ids = ", ".join(map(str, gone[:NAMED])) + (f" and {len(gone) - NAMED} more" if len(gone) > NAMED else "")
        words = f"without trials row {ids} among the best: no measurement of it is left"
        warnings.warn(f"{database.shown}: {words}", StoreWarning, stacklevel=2)

    def row(key: Key, place: Place | None) -> BestRow:
        decision, winner = decided[key], rows[decided[key].trial_id]
        basis: Basis = "finals" if decision.finals_id else "retime" if decision.retimed else "median"
        study, layer = (winner.study, winner.layer) if place is None else (place.study, place.layer)
        return BestRow(study, layer, timings[key], basis, winner)

    keys = sorted(timings)
    if places is None:
        return tuple(row(key, None) for key in keys)
    return tuple(row(key, place) for place in current_places(places) for key in keys if key[0] == place.subject_id)


def _fastest(connection: Connection, chosen: set[int] | None, part: Slice) -> dict[Key, _Decision]:
    """The correct trial with the smallest time of each key; a trial that was measured again has its latest time."""
    original = func.coalesce(trials.c.reused_trial_id, trials.c.id)
    retimed, held, again = retimes.alias("retimed"), finals.alias("held"), measurements.alias("again")
    last_retime = (
        select(retimed.c.id)
        .where(retimed.c.trial_id == original, part.ended(retimed.c.ended_at))
        .order_by(retimed.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    in_finals = and_(part.ended(held.c.ended_at), true() if part.admits_imported else held.c.origin == "measured")
    latest = (
        select(again.c.trial_id, func.max(again.c.id).label("again_id"))
        .outerjoin(retimed, retimed.c.id == again.c.retime_id)
        .outerjoin(held, held.c.id == again.c.finals_id)
        .where(
            or_(
                and_(again.c.retime_id.is_not(None), part.ended(retimed.c.ended_at)),
                and_(again.c.finals_id.is_not(None), in_finals),
            )
        )
        .group_by(again.c.trial_id)
        .subquery()
    )
    stands = true() if part.admits_imported else trials.c.origin == "measured"
    failed = and_(retimes.c.id.is_not(None), retimes.c.after_us.is_(None))
    time_us = case(
        (failed, null()), (measurements.c.id.is_not(None), measurements.c.median_us), (stands, trials.c.median_us)
    )
    decided_by = (latest.c.again_id, measurements.c.retime_id)
    # SQLite gives the other columns of the row that has the minimum.
    statement = (
        select(*(trials.c[name] for name in KEY), trials.c.id, *decided_by, func.min(time_us))
        .select_from(trials)
        .outerjoin(retimes, retimes.c.id == last_retime)
        .outerjoin(latest, latest.c.trial_id == original)
        .outerjoin(measurements, measurements.c.id == latest.c.again_id)
        .where(
            trials.c.outcome == str(Outcome.CORRECT),
            trials.c.policy != END_TO_END,
            trials.c.subject_id.in_(select(subjects.c.id).where(subjects.c.layer_id.is_not(None))),
            time_us.is_not(None),
            part.holds(trials.c.study_id, trials.c.ended_at),
        )
        .group_by(*(trials.c[name] for name in KEY))
    )
    if chosen is not None:
        statement = statement.where(trials.c.subject_id.in_(chosen))
    return {
        key_of(row): _Decision(
            row[trials.c.id], None, row[latest.c.again_id], row[measurements.c.retime_id] is not None
        )
        for row in rows_of(connection, statement)
    }


@dataclass(frozen=True, slots=True)
class _Held:
    """Finals that no retime put in doubt."""

    finals_id: int
    key: Key
    study: str
    winner_trial_id: int
    source_id: int | None
    """the winner's kernel"""
    time_us: float
    launch: str | None
    """how that time was taken; None where no samples are kept"""


def _finals_winners(connection: Connection, chosen: set[int] | None, part: Slice) -> dict[Key, _Decision]:
    """The fastest winner of each key, of the finals that no later ones have overtaken.

    Those of the same study have, and those in which the winner took part.
    """
    held = _held(connection, chosen, part)
    kernels = _kernels_of(connection, held)
    deciding: dict[Key, list[_Held]] = {}
    for one in held:
        later = deciding.setdefault(one.key, [])
        later[:] = [
            earlier
            for earlier in later
            if earlier.study != one.study and earlier.source_id not in kernels.get(one.finals_id, ())
        ]
        later.append(one)
    fastest = {key: _fastest_of(some) for key, some in deciding.items()}
    return {key: _Decision(one.winner_trial_id, finals_id=one.finals_id) for key, one in fastest.items()}


def _fastest_of(some: Sequence[_Held]) -> _Held:
    """The fastest, the newest of equals; beside CUDA graphs, short times that may have launch gaps come last."""
    graphs = any(one.launch == "graph" for one in some)

    def rank(one: _Held) -> tuple[bool, float, int]:
        return graphs and one.launch == "stream" and one.time_us < LONG_US, one.time_us, -one.finals_id

    return min(some, key=rank)


def _held(connection: Connection, chosen: set[int] | None, part: Slice) -> Sequence[_Held]:
    """The finals of a part, oldest first."""
    in_doubt = and_(finals.c.superseded_at.is_not(None), part.ended(finals.c.superseded_at))
    timed = and_(measurements.c.finals_id == finals.c.id, measurements.c.trial_id == trials.c.id)
    statement = (
        select(finals.c.id, *(trials.c[name] for name in (*KEY, "id", "source_id")), studies.c.name)
        .add_columns(
            func.coalesce(measurements.c.median_us, trials.c.median_us).label("time_us"), measurements.c.launch
        )
        .join(trials, trials.c.id == finals.c.winner_trial_id)
        .join(studies, studies.c.id == finals.c.study_id)
        .outerjoin(measurements, timed)
        .where(
            ~in_doubt,
            trials.c.outcome == str(Outcome.CORRECT),
            true() if part.admits_imported else finals.c.origin == "measured",
            part.holds(finals.c.study_id, finals.c.ended_at),
        )
        .order_by(finals.c.id)
    )
    if chosen is not None:
        statement = statement.where(finals.c.subject_id.in_(chosen))
    return [
        _Held(
            finals_id=row[finals.c.id],
            key=key_of(row),
            study=row[studies.c.name],
            winner_trial_id=row[trials.c.id],
            source_id=row[trials.c.source_id],
            time_us=row["time_us"],
            launch=row[measurements.c.launch],
        )
        for row in rows_of(connection, statement)
    ]


def _kernels_of(connection: Connection, held: Sequence[_Held]) -> dict[int, set[int | None]]:
    """The kernels that took part in each of these finals."""
    found: dict[int, set[int | None]] = {}
    for chunk in chunks([one.finals_id for one in held]):
        statement = (
            select(measurements.c.finals_id, trials.c.source_id)
            .join(trials, trials.c.id == measurements.c.trial_id)
            .where(measurements.c.finals_id.in_(chunk))
        )
        for finals_id, source_id in connection.execute(statement):
            found.setdefault(finals_id, set()).add(source_id)
    return found


def _timing(connection: Connection, decision: _Decision) -> Timing | None:
    """The measurement that decided; the trial's own where the finals or the retime kept none; None without any."""
    own = and_(measurements.c.finals_id.is_(None), measurements.c.retime_id.is_(None))
    if decision.again_id is not None:
        decided = measurements.c.id == decision.again_id
    elif decision.finals_id is not None:
        kept = or_(own, measurements.c.finals_id == decision.finals_id)
        decided = and_(measurements.c.trial_id == decision.trial_id, kept)
    else:
        decided = and_(measurements.c.trial_id == decision.trial_id, own)
    statement = select(measurements).where(decided).order_by(measurements.c.id.desc()).limit(1)
    row = next(rows_of(connection, statement), None)
    return None if row is None else timing_of(row)
