"""Results of earlier trials, which need not be measured again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, select

from autotune.store.rows import rows_of
from autotune.store.run_context import Scope
from autotune.store.schema.tables import sources, studies, trials
from autotune.store.schema.types import Values
from autotune.store.sqlite.database import Database
from autotune.store.trial_store import TrialKey, begin_trial, end_trial
from autotune.store.trials import TrialRow, select_trials, trial_of, trials_by_id
from autotune.trial import Config, Outcome, Phases, Trial

_KNOWN = (
    trials.c.device_id == bindparam("device_id"),
    trials.c.environment_id == bindparam("environment_id"),
    trials.c.measurement_mode == bindparam("measurement_mode"),
    trials.c.outcome != str(Outcome.RUNNING),
    trials.c.reused_trial_id.is_(None),
    trials.c.origin == "measured",
    trials.c.id > bindparam("after"),
)
"""measured trials with a result, in any study"""

_LATEST_KNOWN = (
    select(trials.c.id)
    .join(sources)
    .where(sources.c.hash == bindparam("hash"), *_KNOWN)
    .order_by(trials.c.id.desc())
    .limit(1)
)


@cache
def _of_others() -> Select[*tuple[Any, ...]]:
    """Those of a layer in other studies; the condition on studies lets SQLite use an index."""
    others = trials.c.study_id.in_(select(studies.c.id).where(studies.c.id != bindparam("study_id")))
    of_layer = trials.c.tuning_target_id == bindparam("tuning_target_id")
    return select_trials().where(others, of_layer, trials.c.source_id.is_not(None), *_KNOWN).order_by(trials.c.id)


def _known_to(scope: Scope) -> Values:
    """The parameters of _KNOWN: which trials a scope may reuse."""
    return {
        "device_id": scope.device_id,
        "environment_id": scope.environment_id,
        "measurement_mode": scope.measurement_mode,
        "after": scope.study.fresh_after or 0,
    }


@dataclass(frozen=True, slots=True)
class KnownStore:
    """Finished trials of a scope's device, environment and measurement mode, in any study, without imported ones.

    A study that was started afresh sees only trials since then.
    """

    database: Database

    def get(self, scope: Scope, source_hash: str) -> TrialRow | None:
        """The latest finished trial of this source."""
        with self.database.read() as connection:
            trial_id = connection.execute(_LATEST_KNOWN, {"hash": source_hash, **_known_to(scope)}).scalar_one_or_none()
            return None if trial_id is None else trials_by_id(connection, [trial_id])[trial_id]

    def of_other_studies(self, scope: Scope) -> dict[str, Trial]:
        """The latest result of each source of the scope's layer in other studies."""
        values = {**_known_to(scope), "study_id": scope.study.id, "tuning_target_id": scope.tuning_target_id}
        with self.database.read() as connection:
            return {row[sources.c.hash]: trial_of(row) for row in rows_of(connection, _of_others(), values)}

    def reuse(
        self, scope: Scope, number: int, config: Config, known: TrialRow, *, proposed_by: str = "search"
    ) -> Trial:
        """Store the result of an earlier trial as this scope's trial, in one commit; its phases took no time."""
        trial = replace(known.trial, number=number, config=config, phases=Phases())
        now = self.database.now()
        with self.database.write() as connection:
            source_id = connection.execute(select(trials.c.source_id).where(trials.c.id == known.id)).scalar_one()
            trial_id = begin_trial(
                connection, scope, number, config, source_id, now, proposed_by=proposed_by, reused_trial_id=known.id
            )
            end_trial(connection, TrialKey(trial_id, number, config, trial.source_hash), trial, now)
        return trial
