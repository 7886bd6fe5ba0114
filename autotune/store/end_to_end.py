"""End-to-end trials: what their times are made of."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Column, Float, ForeignKey, RowMapping, Table, select, tuple_

from autotune.errors import StoreError
from autotune.store.columns import Values, finite, integer, metadata, real
from autotune.store.sqlite.database import Database
from autotune.store.studies import find
from autotune.store.trial_rows import TrialRow, trials, with_trials
from autotune.trial import SpanParts

spans = Table(
    "spans",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    *(real(name) for name in ("copy_in_us", "kernel_us", "copy_out_us")),
    Column("hidden_fraction", Float),
    real("allocate_us"),
    *(integer(name) for name in ("host_bytes", "distinct_segments")),
)


@dataclass(frozen=True, slots=True)
class SpanRow:
    """An end-to-end trial with the parts of its time."""

    row: TrialRow
    parts: SpanParts


def span_values(parts: SpanParts, what: str) -> Values:
    """The columns of an end-to-end trial's parts. Raises StoreError when a time is not a finite number."""
    for value in (parts.copy_in_us, parts.kernel_us, parts.copy_out_us, parts.allocate_us):
        if not math.isfinite(value):
            raise StoreError(f"{what}: a time of {value} us was measured; only finite times are stored")
    return {**asdict(parts), "hidden_fraction": finite(parts.hidden_fraction)}


def span_of(row: RowMapping) -> SpanParts:
    """The parts of a row that has the columns of `spans`."""
    return SpanParts(*(row[spans.c[field.name]] for field in fields(SpanParts)))


@dataclass(frozen=True, slots=True)
class EndToEndStore:
    """End-to-end trials."""

    database: Database

    def list(self, what: str | None = None) -> tuple[SpanRow, ...]:
        """End-to-end trials of the newest generation of each study, with the parts of their times, as they came."""
        with self.database.read() as connection:
            pairs = [(place.study_id, place.subject_id) for place in find(connection, what, self.database.shown)]
            statement = (
                select(spans)
                .join(trials, trials.c.id == spans.c.trial_id)
                .where(tuple_(trials.c.study_id, trials.c.subject_id).in_(pairs))
                .order_by(trials.c.study_id, trials.c.id)
            )
            return tuple(
                SpanRow(trial, span_of(row)) for row, trial in with_trials(connection, statement, spans.c.trial_id)
            )
