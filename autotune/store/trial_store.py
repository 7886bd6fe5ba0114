"""Write trials, query them, and reuse the results of earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, func, select, update

from autotune.errors import StoreError
from autotune.family.source import KernelSource
from autotune.problem import Problem
from autotune.store.result_rows import listed, rows, trial_places
from autotune.store.rows import insert, insert_unless_there, rows_of
from autotune.store.run_context import SCOPE, Scope, TargetScope
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import end_to_end_timings, measurements, sources, studies, trials
from autotune.store.schema.views import LISTED_IDS
from autotune.store.sources import store_source
from autotune.store.sqlite.database import Database
from autotune.store.trials import (
    TrialRow,
    config_of,
    outcome_values,
    parts_values,
    select_trials,
    timing_values,
    trial_of,
    trials_by_id,
)
from autotune.trial import Config, EndToEndParts, Outcome, Phases, Trial


@dataclass(frozen=True, slots=True)
class TrialKey:
    """The key of a stored trial that has been started."""

    id: int
    number: int
    config: Config
    source_hash: str | None
    attempts: int = 1
    """number of times the trial was started, including this one; runs ended by the user don't count"""


CIRCUMSTANCES = ("tuning_target_id", "device_id", "environment_id", "measurement_mode", "origin")
"""the columns that two trials must share for their times to be comparable"""
_IN_SCOPE = tuple(trials.c[name] == bindparam(name) for name in SCOPE)
"""the condition that a trial belongs to a scope, with the values of the scope's `identity`"""
_NUMBERED = select(trials.c.id, trials.c.outcome, trials.c.config, trials.c.attempts).where(
    *_IN_SCOPE, trials.c.number == bindparam("number")
)
_LAST_NUMBER = select(func.max(trials.c.number)).where(*_IN_SCOPE)

# A copy is not ranked. The original trial is ranked, and may be measured again.
_END = (
    update(trials)
    .where(trials.c.id == bindparam("trial_id"), trials.c.outcome == str(Outcome.RUNNING))
    .values(ranking_median_us=case((trials.c.reused_trial_id.is_(None), bindparam("own_us"))))
)


def begin_trial(
    connection: Connection,
    scope: TargetScope,
    number: int,
    config: Config,
    source_id: int | None,
    now: datetime,
    *,
    proposed_by: str,
    reused_trial_id: int | None = None,
) -> int:
    """Start a trial and return its id. This is a new trial, or the suspect with this number and config, which starts
    again.

    Raises StoreError if the scope has another trial with this number.
    """
    beginning: Values = {
        "run_id": scope.run_id,
        "template_id": scope.template_ids[config.template],
        "config": config.to_json(),
        "started_at": now,
        "proposed_by": proposed_by,
        "source_id": source_id,
        "reused_trial_id": reused_trial_id,
    }
    identity: Values = {**scope.identity, "number": number}
    running = outcome_values(Trial(number, config, Outcome.RUNNING))
    new_id = insert_unless_there(connection, trials, {**identity, **beginning, **running, "attempts": 1})
    if new_id is not None:
        return new_id
    row = next(rows_of(connection, _NUMBERED, identity))
    if row[trials.c.outcome] != str(Outcome.RUNNING) or row[trials.c.config] != config.to_json():
        raise StoreError(
            f"{scope.name}: trial {number} is stored already; is another run tuning this study into the same file?"
        )
    again = update(trials).where(trials.c.id == row[trials.c.id])
    connection.execute(again, {**beginning, "attempts": row[trials.c.attempts] + 1})
    return int(row[trials.c.id])


def end_trial(
    connection: Connection, key: TrialKey, trial: Trial, now: datetime, parts: EndToEndParts | None = None
) -> None:
    """Store a running trial's outcome and measurement; `parts` are the parts of an end-to-end time.

    Raises StoreError if the trial isn't running.
    """
    values = outcome_values(trial)
    own_us = values.pop("ranking_median_us")
    changed = connection.execute(_END, {**values, "trial_id": key.id, "own_us": own_us, "ended_at": now})
    if changed.rowcount != 1:
        raise StoreError(f"trial {key.number} has ended already; is another run tuning this study into the same file?")
    if trial.timing is not None:
        insert(connection, measurements, {"trial_id": key.id, **timing_values(trial.timing)})
    if parts is not None:
        insert(connection, end_to_end_timings, {"trial_id": key.id, **parts_values(parts)})


def within(scope: TargetScope) -> ColumnElement[bool]:
    """Return the condition that a trial belongs to a scope."""
    return and_(*(trials.c[name] == value for name, value in scope.identity.items()))


@dataclass(frozen=True, slots=True)
class TrialStore:
    """Writes trials in a scope, and queries them by name."""

    database: Database

    def begin(
        self,
        scope: Scope,
        number: int,
        config: Config,
        source: KernelSource | None = None,
        *,
        proposed_by: str = "search",
    ) -> TrialKey:
        """Commit a trial as running, with its source, before anything is launched.

        A suspect starts again under its old number, with its attempts increased by one. Raises StoreError if the number
        belongs to a finished trial or to a different config.
        """
        with self.database.write() as connection:
            return self._begin(connection, scope, number, config, source, self.database.now(), proposed_by)

    def end(self, key: TrialKey, trial: Trial, parts: EndToEndParts | None = None) -> None:
        """Commit a running trial's outcome and measurement; `parts` are the parts of an end-to-end time."""
        with self.database.write() as connection:
            end_trial(connection, key, trial, self.database.now(), parts)

    def withdraw(self, keys: Iterable[TrialKey]) -> None:
        """Subtract an attempt from running trials after the user ended their run, because they didn't fail."""
        running = trials.c.outcome == str(Outcome.RUNNING)
        with self.database.write() as connection:
            for key in keys:
                taken_back = update(trials).where(trials.c.id == key.id, running)
                connection.execute(taken_back.values(attempts=trials.c.attempts - 1))

    def add(
        self, scope: Scope, trial: Trial, source: KernelSource | None = None, *, proposed_by: str = "search"
    ) -> TrialKey:
        """Begin and end a trial that was never launched, in a single commit."""
        now = self.database.now()
        with self.database.write() as connection:
            key = self._begin(connection, scope, trial.number, trial.config, source, now, proposed_by)
            end_trial(connection, key, trial, now)
        return key

    def _begin(
        self,
        connection: Connection,
        scope: Scope,
        number: int,
        config: Config,
        source: KernelSource | None,
        now: datetime,
        proposed_by: str,
    ) -> TrialKey:
        source_id = None if source is None else store_source(connection, scope, source)
        trial_id = begin_trial(connection, scope, number, config, source_id, now, proposed_by=proposed_by)
        return TrialKey(trial_id, number, config, None if source is None else source.hash)

    def history(self, scope: Scope) -> tuple[Trial, ...]:
        """Return a scope's finished trials by number, without imported ones."""
        with self.database.read() as connection:
            return tuple(trial_of(row) for row in rows_of(connection, _finished(), scope.identity))

    def next_number(self, scope: TargetScope) -> int:
        """Return the number after a scope's last trial, including suspects, or 0 if there is none."""
        with self.database.read() as connection:
            last = connection.execute(_LAST_NUMBER, scope.identity).scalar_one()
        return 0 if last is None else int(last) + 1

    def suspects(self, scope: Scope) -> tuple[TrialKey, ...]:
        """Return a scope's trials that a killed run left running."""
        running = trials.c.outcome == str(Outcome.RUNNING)
        statement = select_trials().where(within(scope), running).order_by(trials.c.number)
        with self.database.read() as connection:
            return tuple(
                TrialKey(
                    row[trials.c.id], row[trials.c.number], config_of(row), row[sources.c.hash], row[trials.c.attempts]
                )
                for row in rows_of(connection, statement)
            )

    def list(
        self,
        what: str | Problem | None = None,
        *,
        outcome: str | None = None,
        sort: str = "number",
        limit: int | None = None,
        kind: str | None = None,
        generations: str = "newest",
    ) -> tuple[TrialRow, ...]:
        """List trials in one of the orders in SORTS. For a problem, these are the trials of every study and generation.

        With `generations="newest"`, earlier generations of a study and earlier shapes of its layers are left out,
        unless nothing else matches; "all" includes them. Raises StoreError for an unknown word.
        """
        with self.database.read() as connection:
            places = trial_places(connection, what, self.database.shown, generations)
            values = listed(places, outcome=outcome, kind=kind, sort=sort, limit=limit)
            ids = [row["trial_id"] for row in rows(connection, LISTED_IDS, values)]
            by_id = trials_by_id(connection, ids)
            return tuple(by_id[trial_id] for trial_id in ids)

    def like(self, row: TrialRow) -> tuple[TrialRow, ...]:
        """Return finished trials from any study whose times are comparable with this trial's, oldest first."""
        one = trials.alias("one")
        same = (trials.c[name] == one.c[name] for name in CIRCUMSTANCES)
        statement = (
            select(trials.c.id)
            .join(one, and_(one.c.id == row.id, *same))
            .where(trials.c.outcome != str(Outcome.RUNNING))
            .order_by(trials.c.id)
        )
        with self.database.read() as connection:
            ids = list(connection.execute(statement).scalars())
            by_id = trials_by_id(connection, ids)
            return tuple(by_id[trial_id] for trial_id in ids)


# The next statements are cached, because building them takes longer than running them.


@cache
def _finished() -> Select[*tuple[Any, ...]]:
    """Select a scope's finished trials, without imported ones."""
    finished = (trials.c.outcome != str(Outcome.RUNNING), trials.c.origin == "measured")
    return select_trials().where(*_IN_SCOPE, *finished).order_by(trials.c.number)


_KNOWN = (
    trials.c.device_id == bindparam("device_id"),
    trials.c.environment_id == bindparam("environment_id"),
    trials.c.measurement_mode == bindparam("measurement_mode"),
    trials.c.outcome != str(Outcome.RUNNING),
    trials.c.reused_trial_id.is_(None),
    trials.c.origin == "measured",
    trials.c.id > bindparam("after"),
)
"""the condition that a trial was measured and has a result, in any study"""

_LATEST_KNOWN = (
    select(trials.c.id)
    .join(sources)
    .where(sources.c.hash == bindparam("hash"), *_KNOWN)
    .order_by(trials.c.id.desc())
    .limit(1)
)


@cache
def _of_others() -> Select[*tuple[Any, ...]]:
    """Select a layer's trials in other studies. The condition on studies lets SQLite use an index."""
    others = trials.c.study_id.in_(select(studies.c.id).where(studies.c.id != bindparam("study_id")))
    of_layer = trials.c.tuning_target_id == bindparam("tuning_target_id")
    return select_trials().where(others, of_layer, trials.c.source_id.is_not(None), *_KNOWN).order_by(trials.c.id)


def _known_to(scope: Scope) -> Values:
    """Return the parameters of _KNOWN, which select the trials that a scope may reuse."""
    return {
        "device_id": scope.device_id,
        "environment_id": scope.environment_id,
        "measurement_mode": scope.measurement_mode,
        "after": scope.study.fresh_after or 0,
    }


@dataclass(frozen=True, slots=True)
class KnownStore:
    """Finished trials with a scope's device, environment and measurement mode, from any study, without imported ones.

    A study that was started afresh sees only trials newer than its fresh start.
    """

    database: Database

    def get(self, scope: Scope, source_hash: str) -> TrialRow | None:
        """Return the latest finished trial of this source."""
        with self.database.read() as connection:
            trial_id = connection.execute(_LATEST_KNOWN, {"hash": source_hash, **_known_to(scope)}).scalar_one_or_none()
            return None if trial_id is None else trials_by_id(connection, [trial_id])[trial_id]

    def of_other_studies(self, scope: Scope) -> dict[str, Trial]:
        """Return each source's latest result for the scope's layer in other studies."""
        values = {**_known_to(scope), "study_id": scope.study.id, "tuning_target_id": scope.tuning_target_id}
        with self.database.read() as connection:
            return {row[sources.c.hash]: trial_of(row) for row in rows_of(connection, _of_others(), values)}

    def reuse(
        self, scope: Scope, number: int, config: Config, known: TrialRow, *, proposed_by: str = "search"
    ) -> Trial:
        """Store an earlier trial's result as a trial of this scope, in a single commit. Its phases take no time."""
        trial = replace(known.trial, number=number, config=config, phases=Phases())
        now = self.database.now()
        with self.database.write() as connection:
            source_id = connection.execute(select(trials.c.source_id).where(trials.c.id == known.id)).scalar_one()
            trial_id = begin_trial(
                connection, scope, number, config, source_id, now, proposed_by=proposed_by, reused_trial_id=known.id
            )
            end_trial(connection, TrialKey(trial_id, number, config, trial.source_hash), trial, now)
        return trial
