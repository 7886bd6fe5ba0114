"""Trials as rows: those of the view `results` with some more columns, for answers that list them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from autotune.store.schema.views import LISTED
from autotune.store.sqlite.database import Database
from autotune.store.studies import find, one_of, spaces_named
from autotune.trial import Outcome

SORTS = ("number", "median", "registers", "error", "started")
"""Orders of a list of trials; those without the value come last."""

Result = Mapping[str, Any]
"""A row by column: those of the view `results` and of `views.LISTED`."""


@dataclass(frozen=True, slots=True)
class ResultStore:
    """Trials of layers, and after them those of imported spaces."""

    database: Database

    def list(
        self,
        what: str | None = None,
        *,
        outcome: str | None = None,
        number: int | None = None,
        sort: str = "number",
        generations: str = "newest",
    ) -> tuple[Result, ...]:
        """The rows in an order of SORTS, each a mapping by column.

        `generations` is as in `TrialStore.list`. Raises StoreError for an unknown word or name.
        """
        one_of("sort", sort, SORTS)
        if outcome is not None:
            one_of("outcome", outcome, tuple(Outcome))
        with self.database.read() as connection:
            pairs = None
            if what is not None or generations == "newest":
                places = find(connection, what, self.database.shown, generations)
                if generations == "newest":
                    places = tuple(place for place in places if place.current) or places
                pairs = [(place.study_id, place.tuning_target_id) for place in places]
                pairs += spaces_named(connection, what)
            return _rows(connection, outcome=outcome, number=number, sort=sort, places=pairs)

    def by_id(self, trial_id: int) -> tuple[Result, ...]:
        """The row of a trial's id; none where there is no such trial of a layer or an imported space."""
        with self.database.read() as connection:
            return _rows(connection, trial_id=trial_id)


def _rows(
    connection: Connection,
    *,
    trial_id: int | None = None,
    outcome: str | None = None,
    number: int | None = None,
    sort: str = "number",
    places: list[tuple[int, int]] | None = None,
) -> tuple[Result, ...]:
    values = {"trial_id": trial_id, "outcome": outcome, "number": number, "sort": sort}
    found = connection.execute(text(LISTED), {**values, "places": None if places is None else json.dumps(places)})
    names = tuple(found.keys())
    return tuple(dict(zip(names, row, strict=True)) for row in found)
