"""End-to-end trials and the parts of their times."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import select, tuple_

from autotune.store.rows import finite, record_of, values_of
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import end_to_end_timings, trials
from autotune.store.sqlite.database import Database
from autotune.store.studies import find
from autotune.store.trials import TrialRow, with_trials
from autotune.trial import EndToEndParts


@dataclass(frozen=True, slots=True)
class EndToEndRow:
    """An end-to-end trial with the parts of its time."""

    row: TrialRow
    parts: EndToEndParts


def parts_values(parts: EndToEndParts) -> Values:
    """The columns of an end-to-end trial's parts."""
    return values_of(replace(parts, hidden_fraction=finite(parts.hidden_fraction)), end_to_end_timings)


@dataclass(frozen=True, slots=True)
class EndToEndStore:
    """End-to-end trials."""

    database: Database

    def list(self, what: str | None = None) -> tuple[EndToEndRow, ...]:
        """The end-to-end trials of the newest generation of each study with the parts of their times, oldest first."""
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
