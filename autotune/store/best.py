"""The best kernels: now, of one study, at an earlier moment, and how they came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Integer,
    RowMapping,
    ScalarSelect,
    Select,
    Table,
    select,
)

from autotune.devices.device import DeviceInfo
from autotune.problem import Problem
from autotune.store.best_of_part import Slice, best_within
from autotune.store.best_rows import CORRECT, KEY, BestRow, Key, key_of
from autotune.store.column_types import Text, date_text, views
from autotune.store.devices import devices, same_device
from autotune.store.layers import layers, of_problem, subjects
from autotune.store.measurements import measurements, timing_of
from autotune.store.retimes import retimes
from autotune.store.sqlite.database import Database
from autotune.store.statements import rows_of
from autotune.store.studies import Place, called, current_places, find, one_of, studies, study_layers, subject_ids
from autotune.store.trials import TrialRow, trials, trials_by_id, while_tuning, with_trials
from autotune.store.unreadable import reading
from autotune.trial import ACCURACY_CLASSES, END_TO_END, Outcome

TUNE_FIRST = "run `autotune tune STUDY` first"

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
        return self._is_there(what, device, CORRECT, trials.c.origin == "imported", never_retimed)

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
        if ended and not self._is_there(what, device, CORRECT):
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
            part = Slice(study_id=places[0].study_id) if places else Slice()
            return best_within(self.database, connection, places, part)

    @reading
    def at(self, moment: datetime, what: str | None = None) -> tuple[BestRow, ...]:
        """The best kernels as they stood at a moment."""
        with self.database.read() as connection:
            places = None if what is None else find(connection, what, self.database.shown)
            return best_within(self.database, connection, places, Slice(until=date_text(moment)))

    @reading
    def improvements(self, what: str | None = None) -> tuple[TrialRow, ...]:
        """Trials that were the fastest of their layer, device, class and policy when they ended, in any study."""
        with self.database.read() as connection:
            statement = (
                select(*(trials.c[name] for name in KEY), trials.c.id, trials.c.median_us)
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
            fastest: dict[Key, float] = {}
            found = []
            for row in rows_of(connection, statement):
                key, median_us = key_of(row), row[trials.c.median_us]
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
