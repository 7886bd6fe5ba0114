"""Run the SQL of `trials`, `diff` and `history`, which yields rows by column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, text

from autotune.devices.device import DeviceInfo
from autotune.problem import Problem
from autotune.store.best import part_of, target_of
from autotune.store.devices import same_device
from autotune.store.schema.tables import devices, trials
from autotune.store.schema.views import HISTORY, LISTED, diff
from autotune.store.sqlite.database import Database
from autotune.store.studies import LayerRow, current_places, find, one_of
from autotune.trial import Outcome

SORTS = ("number", "median", "registers", "error", "started")
"""The orders in which trials can be listed. Trials without the value come last."""

Result = Mapping[str, Any]
"""A row, keyed by column."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a diff: a generation of a study, or a recorded device."""

    kind: str
    """`study` or `device`"""
    words: str
    """the name of the side in messages"""
    study: str | None = None
    generation: int | None = None
    device: DeviceInfo | None = None

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class ResultStore:
    """Runs queries whose rows are printed with few changes."""

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
        """List layers' trials in one of the orders in SORTS.

        `generations` has the same meaning as in `TrialStore.list`. Raises StoreError for an unknown word or name.
        """
        with self.database.read() as connection:
            places = trial_places(connection, what, self.database.shown, generations)
            return rows(connection, LISTED, listed(places, outcome=outcome, number=number, sort=sort))

    def diff(self, first: Side, second: Side, what: str | None = None) -> tuple[Result, ...]:
        """Pair the best kernels of two sides, in the order of the first one.

        Kernels that only the second side has come last.
        """
        with self.database.read() as connection:
            values = _side(connection, first, what, self.database.shown, "_a")
            values |= _side(connection, second, what, self.database.shown, "_b")
            return rows(connection, diff(first.kind), {**values, "across_devices": first.kind == "device"})

    def history(self, what: str | Problem | None, device: DeviceInfo | None = None) -> tuple[Result, ...]:
        """List how some layers' best times improved: trials that were the fastest so far, finals and retimes."""
        with self.database.read() as connection:
            places: list[tuple[int, str | None]]
            if isinstance(what, Problem):
                places = [(row.id, None) for row in connection.execute(target_of(what))]
            else:
                found = sorted(find(connection, what, self.database.shown), key=lambda place: not place.current)
                places = [(place.tuning_target_id, place.name if place.current else None) for place in found]
            values = {"places": json.dumps(places), "device_id": _device_id(connection, device)}
            return rows(connection, HISTORY, values)


_NO_DEVICE = 0  # ids begin at 1


def _side(connection: Connection, side: Side, what: str | None, where: str, suffix: str) -> dict[str, Any]:
    """Return one side's parameters for the SQL of `diff`."""
    study = None if side.study is None or side.generation is None else (side.study, side.generation)
    places, values = part_of(connection, where, what, study)
    values |= {
        "device_id": _device_id(connection, side.device),
        "places": None if places is None else _named(places),
    }
    return {f"{name}{suffix}": value for name, value in values.items()}


def _named(places: Iterable[LayerRow]) -> str:
    """Return the parameter `:places`: tuning targets with their layers' names, as JSON."""
    return json.dumps([(place.tuning_target_id, place.name) for place in current_places(places)])


def _device_id(connection: Connection, device: DeviceInfo | None) -> int | None:
    if device is None:
        return None
    found = connection.execute(select(devices.c.id).where(*same_device(device))).scalar()
    return _NO_DEVICE if found is None else int(found)


def rows(connection: Connection, sql: str, values: Mapping[str, Any]) -> tuple[Result, ...]:
    """Run SQL and return its rows, keyed by column."""
    result = connection.execute(text(sql), values)
    names = tuple(result.keys())
    return tuple(dict(zip(names, row, strict=True)) for row in result)


def trial_places(
    connection: Connection, what: str | Problem | None, where: str, generations: str
) -> list[tuple[int, int]] | None:
    """Return the study and tuning target of some layers' trials, or None for the trials of all layers.

    For a problem, this includes the trials of every study. With `generations="newest"`, layers that a study no longer
    has are included only if nothing else matches.
    """
    if isinstance(what, Problem):
        pairs = select(trials.c.study_id, trials.c.tuning_target_id).distinct()
        found = connection.execute(pairs.where(trials.c.tuning_target_id.in_(target_of(what))))
        return [(study_id, target_id) for study_id, target_id in found]
    if what is None and generations == "all":
        return None
    places = find(connection, what, where, generations)
    if generations == "newest":
        places = tuple(place for place in places if place.current) or places
    return [(place.study_id, place.tuning_target_id) for place in places]


def listed(
    places: list[tuple[int, int]] | None,
    *,
    number: int | None = None,
    outcome: str | None = None,
    kind: str | None = None,
    sort: str = "number",
    limit: int | None = None,
) -> dict[str, Any]:
    """Return the parameters of `LISTED`. Raises StoreError for an unknown word."""
    one_of("sort", sort, SORTS)
    if outcome is not None:
        one_of("outcome", outcome, tuple(Outcome))
    return {
        "places": None if places is None else json.dumps(places),
        "number": number,
        "outcome": outcome,
        "kind": kind,
        "sort": sort,
        "limit": -1 if limit is None else limit,
    }
