"""The best kernels: now, of one study, at an earlier moment, and how they came about."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    ScalarSelect,
    Select,
    Table,
    and_,
    case,
    func,
    null,
    or_,
    select,
    true,
)

from autotune.devices.device import DeviceInfo
from autotune.errors import StoreWarning
from autotune.problem import Layer, Problem
from autotune.store.column_types import Text, date_text, views
from autotune.store.devices import devices, same_device
from autotune.store.finals import finals
from autotune.store.layers import layers, of_problem, subjects
from autotune.store.measurements import measurements, timing_of
from autotune.store.retimes import retimes
from autotune.store.sqlite.database import Database
from autotune.store.statements import chunks, rows_of
from autotune.store.studies import Place, called, current_places, find, one_of, studies, study_layers, subject_ids
from autotune.store.trials import TrialRow, gflops, trials, trials_by_id, while_tuning, with_trials
from autotune.store.unreadable import NAMED, reading
from autotune.trial import ACCURACY_CLASSES, END_TO_END, LONG_US, Outcome, Timing

Basis = Literal["finals", "retime", "median"]
"""Why a trial is the best: it won the latest finals, or its median is the smallest, of a retime or while tuning."""

Match = Literal["exact", "device class"]
"""How well an answer fits the device asked for: tuned on it, or on one of its compute capability and SM count."""

TUNE_FIRST = "run `autotune tune STUDY` first"
_CORRECT = trials.c.outcome == str(Outcome.CORRECT)

best_trials = Table(
    "best_trials",
    views,
    *(Column(name, Integer) for name in ("layer_id", "subject_id", "device_id")),
    Column("accuracy", Text),
    Column("deterministic", Boolean),
    Column("policy", Text),
    Column("basis", Text),
    Column("trial_id", Integer),
    Column("measurement_id", Integer),
)


@dataclass(frozen=True, slots=True)
class BestRow:
    """The best kernel of one layer, device, accuracy class, determinism and policy."""

    study: str
    """as asked for; `row` may come from another study with the same layer shape"""
    layer: Layer
    timing: Timing
    """what decided: of the finals, or of the trial"""
    basis: Basis
    row: TrialRow
    match: Match = "exact"

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"

    @property
    def median_us(self) -> float:
        """The deciding median."""
        return self.timing.median_us

    @property
    def gflops(self) -> float:
        """Direct-algorithm GFLOP/s."""
        return gflops(self.layer.problem, self.median_us)


_KEY = ("subject_id", "device_id", "accuracy", "deterministic", "policy")
"""what has a best of its own, as in the view best_trials"""

_Key = tuple[int, int, str, bool, str]


@dataclass(frozen=True, slots=True)
class BestStore:
    """The best kernel of each layer, device, accuracy class, determinism and policy."""

    database: Database

    @reading
    def list(
        self,
        what: str | Problem | None = None,
        device: DeviceInfo | None = None,
        *,
        kind: str | None = None,
        accuracy: str | None = None,
    ) -> tuple[BestRow, ...]:
        """The best kernels now, of layers in their studies' order, of a problem, or of every layer.

        A problem is asked about whatever studies call it. With a device only its rows come, or for a layer that has
        none, those of devices of its class; `match` says which. No row: there is no answer.
        """
        statement = _select()
        if kind is not None:
            statement = statement.where(devices.c.kind == kind)
        if accuracy is not None:
            one_of("accuracy class", accuracy, ACCURACY_CLASSES)
            statement = statement.where(best_trials.c.accuracy == accuracy)
        with self.database.read() as connection:
            places = None
            if isinstance(what, Problem):
                statement = statement.where(best_trials.c.subject_id == _subject_of(what))
            elif what is not None:
                places = find(connection, what, self.database.shown)
                statement = statement.where(best_trials.c.subject_id.in_(subject_ids(places)))
            found = with_trials(connection, statement, best_trials.c.trial_id)
            if places is None:
                rows = tuple(_row(row, winner, None) for row, winner in found)
            else:
                of_subject: dict[int, list[tuple[RowMapping, TrialRow]]] = {}
                for row, winner in found:
                    of_subject.setdefault(row[best_trials.c.subject_id], []).append((row, winner))
                rows = tuple(
                    _row(row, winner, place)
                    for place in current_places(places)
                    for row, winner in of_subject.get(place.subject_id, ())
                )
        return rows if device is None else _matching(rows, device)

    def is_imported(self, what: str | Problem | None = None, device: DeviceInfo | None = None) -> bool:
        """Whether there are correct trials, of a device or of any, that count once they were measured here."""
        never_retimed = ~select(retimes.c.id).where(retimes.c.trial_id == trials.c.id).exists()
        return self._is_there(what, device, _CORRECT, trials.c.origin == "imported", never_retimed)

    @reading
    def _is_there(
        self, what: str | Problem | None, device: DeviceInfo | None, *conditions: ColumnElement[bool]
    ) -> bool:
        """Whether a layer or study has such a trial, of a kernel alone."""
        among = [*conditions, trials.c.policy != END_TO_END]
        if device is not None:
            among.append(trials.c.device_id.in_(select(devices.c.id).where(*same_device(device))))
        if isinstance(what, Problem):
            among.append(trials.c.subject_id == _subject_of(what))
        elif what is not None:
            named = select(study_layers.c.subject_id).join(studies).where(called(what))
            among.append(trials.c.subject_id.in_(named))
        with self.database.read() as connection:
            return connection.execute(select(trials.c.id).where(*among).limit(1)).first() is not None

    def advice(self, what: str | None, device: DeviceInfo | None = None, otherwise: str = TUNE_FIRST) -> str:
        """What to do where there is no best kernel: measure what was imported, see why all failed, or `otherwise`."""
        named = f" {what}" if what else ""
        if self.is_imported(what, device):
            return f"imported trials count once they were measured here: run `autotune retime{named}`"
        ended = self._is_there(what, device, trials.c.outcome != str(Outcome.RUNNING))
        if ended and not self._is_there(what, device, _CORRECT):
            return f"no trial of it was correct: `autotune trials{named}` has each one's words"
        return otherwise

    @reading
    def of_study(self, study: str, generation: int, what: str | None = None) -> tuple[BestRow, ...]:
        """The best kernels of one generation of a study, from its own trials and finals, imported ones included."""
        with self.database.read() as connection:
            places = tuple(
                place
                for place in find(connection, what or study, self.database.shown, "all")
                if (place.study, place.generation) == (study, generation)
            )
            part = _Slice(study_id=places[0].study_id) if places else _Slice()
            return _best_within(self.database, connection, places, part)

    @reading
    def at(self, moment: datetime, what: str | None = None) -> tuple[BestRow, ...]:
        """The best kernels as they stood at a moment."""
        with self.database.read() as connection:
            places = None if what is None else find(connection, what, self.database.shown)
            return _best_within(self.database, connection, places, _Slice(until=date_text(moment)))

    @reading
    def improvements(self, what: str | None = None) -> tuple[TrialRow, ...]:
        """Trials that were the fastest of their layer, device, class and policy when they ended, in any study."""
        with self.database.read() as connection:
            statement = (
                select(*(trials.c[name] for name in _KEY), trials.c.id, trials.c.median_us)
                .outerjoin(measurements, while_tuning())
                .where(
                    trials.c.subject_id.in_(subject_ids(find(connection, what, self.database.shown))),
                    trials.c.median_us.is_not(None),
                    trials.c.reused_trial_id.is_(None),
                    trials.c.origin == "measured",
                    trials.c.policy != END_TO_END,
                )
                .order_by(measurements.c.id, trials.c.id)
            )
            fastest: dict[_Key, float] = {}
            found = []
            for row in rows_of(connection, statement):
                key, median_us = _key(row), row[trials.c.median_us]
                if key not in fastest or median_us < fastest[key]:
                    fastest[key] = median_us
                    found.append(row[trials.c.id])
            whole = trials_by_id(connection, found)
        return tuple(whole[trial_id] for trial_id in found)


def _subject_of(problem: Problem) -> ScalarSelect[int]:
    return select(subjects.c.id).join(layers).where(*of_problem(problem)).scalar_subquery()


def _select() -> Select[*tuple[object, ...]]:
    """What decided each best, devices apart."""
    return (
        select(best_trials, measurements)
        .join(measurements, measurements.c.id == best_trials.c.measurement_id)
        .outerjoin(devices, devices.c.id == best_trials.c.device_id)
        .order_by(
            best_trials.c.subject_id,
            devices.c.kind,
            devices.c.name,
            devices.c.id,
            best_trials.c.accuracy,
            best_trials.c.deterministic.desc(),
            best_trials.c.policy,
        )
    )


def _row(row: RowMapping, winner: TrialRow, place: Place | None) -> BestRow:
    return BestRow(
        study=winner.study if place is None else place.study,
        layer=winner.layer if place is None else place.layer,
        timing=timing_of(row),
        basis=row[best_trials.c.basis],
        row=winner,
    )


def _matching(rows: Sequence[BestRow], device: DeviceInfo) -> tuple[BestRow, ...]:
    """Of each layer the rows of this device; where it has none, those of devices of its class, marked so."""
    exact = {row.layer.problem for row in rows if row.row.device.identity == device.identity}
    found = []
    for row in rows:
        other = row.row.device
        if other.identity == device.identity:
            found.append(row)
        elif row.layer.problem not in exact and other.is_like(device):
            found.append(replace(row, match="device class"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Slice:
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


def _best_within(
    database: Database, connection: Connection, places: Sequence[Place] | None, part: _Slice
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

    def row(key: _Key, place: Place | None) -> BestRow:
        decision, winner = decided[key], rows[decided[key].trial_id]
        basis: Basis = "finals" if decision.finals_id else "retime" if decision.retimed else "median"
        study, layer = (winner.study, winner.layer) if place is None else (place.study, place.layer)
        return BestRow(study, layer, timings[key], basis, winner)

    keys = sorted(timings)
    if places is None:
        return tuple(row(key, None) for key in keys)
    return tuple(row(key, place) for place in current_places(places) for key in keys if key[0] == place.subject_id)


def _fastest(connection: Connection, chosen: set[int] | None, part: _Slice) -> dict[_Key, _Decision]:
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
        select(*(trials.c[name] for name in _KEY), trials.c.id, *decided_by, func.min(time_us))
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
        .group_by(*(trials.c[name] for name in _KEY))
    )
    if chosen is not None:
        statement = statement.where(trials.c.subject_id.in_(chosen))
    return {
        _key(row): _Decision(row[trials.c.id], None, row[latest.c.again_id], row[measurements.c.retime_id] is not None)
        for row in rows_of(connection, statement)
    }


@dataclass(frozen=True, slots=True)
class _Held:
    """Finals that no retime put in doubt."""

    finals_id: int
    key: _Key
    study: str
    winner_trial_id: int
    source_id: int | None
    """the winner's kernel"""
    time_us: float
    launch: str | None
    """how that time was taken; None where no samples are kept"""


def _finals_winners(connection: Connection, chosen: set[int] | None, part: _Slice) -> dict[_Key, _Decision]:
    """The fastest winner of each key, of the finals that no later ones have overtaken.

    Those of the same study have, and those in which the winner took part.
    """
    held = _held(connection, chosen, part)
    kernels = _kernels_of(connection, held)
    deciding: dict[_Key, list[_Held]] = {}
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


def _held(connection: Connection, chosen: set[int] | None, part: _Slice) -> Sequence[_Held]:
    """The finals of a part, oldest first."""
    in_doubt = and_(finals.c.superseded_at.is_not(None), part.ended(finals.c.superseded_at))
    timed = and_(measurements.c.finals_id == finals.c.id, measurements.c.trial_id == trials.c.id)
    statement = (
        select(finals.c.id, *(trials.c[name] for name in (*_KEY, "id", "source_id")), studies.c.name)
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
            key=_key(row),
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


def _key(row: RowMapping) -> _Key:
    subject_id, device_id, accuracy, deterministic, policy = (row[trials.c[name]] for name in _KEY)
    return (subject_id, device_id, accuracy, deterministic, policy)


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
