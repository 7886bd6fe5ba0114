"""End-to-end trials: what their times are made of."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Column, Float, ForeignKey, RowMapping, Table, select, tuple_

from autotune.errors import StoreError
from autotune.store.column_types import Values, finite, integer, metadata, real
from autotune.store.sqlite.database import Database
from autotune.store.studies import find
from autotune.store.trials import TrialRow, trials, with_trials
from autotune.store.unreadable import reading
from autotune.trial import EndToEndParts

end_to_end_timings = Table(
    "end_to_end_timings",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    *(real(name) for name in ("copy_in_us", "kernel_us", "copy_out_us")),
    Column("hidden_fraction", Float),
    real("allocate_us"),
    *(integer(name) for name in ("host_bytes", "distinct_segments")),
)


@dataclass(frozen=True, slots=True)
class EndToEndRow:
    """An end-to-end trial with the parts of its time."""

    row: TrialRow
    parts: EndToEndParts


def parts_values(parts: EndToEndParts, what: str) -> Values:
    """The columns of an end-to-end trial's parts. Raises StoreError when a time is not a finite number."""
    for value in (parts.copy_in_us, parts.kernel_us, parts.copy_out_us, parts.allocate_us):
        if not math.isfinite(value):
            raise StoreError(f"{what}: a time of {value} us was measured; only finite times are stored")
    return {**asdict(parts), "hidden_fraction": finite(parts.hidden_fraction)}


def parts_of(row: RowMapping) -> EndToEndParts:
    """The parts of a row that has the columns of `end_to_end_timings`."""
    return EndToEndParts(*(row[end_to_end_timings.c[field.name]] for field in fields(EndToEndParts)))


@dataclass(frozen=True, slots=True)
class EndToEndStore:
    """End-to-end trials."""

    database: Database

    @reading
    def list(self, what: str | None = None) -> tuple[EndToEndRow, ...]:
        """End-to-end trials of the newest generation of each study, with the parts of their times, as they came."""
        with self.database.read() as connection:
            pairs = [(place.study_id, place.subject_id) for place in find(connection, what, self.database.shown)]
            statement = (
                select(end_to_end_timings)
                .join(trials, trials.c.id == end_to_end_timings.c.trial_id)
                .where(tuple_(trials.c.study_id, trials.c.subject_id).in_(pairs))
                .order_by(trials.c.study_id, trials.c.id)
            )
            return tuple(
                EndToEndRow(trial, parts_of(row))
                for row, trial in with_trials(connection, statement, end_to_end_timings.c.trial_id)
            )
