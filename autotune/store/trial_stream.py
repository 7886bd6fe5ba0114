"""Very many trials, one after another: what many of them share is one record, what is a trial's own are values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, func, select

from autotune.store.column_types import date_of
from autotune.store.configs import config_values
from autotune.store.measurements import TIMING_COLUMNS, check_numbers, measurements
from autotune.store.sources import sources
from autotune.store.sqlite.database import NOT_UNDERSTOOD
from autotune.store.statements import texts_tuples_of
from autotune.store.trials import LARGEST_NUMBER, MOST_KEPT, TrialRow, TrialRows, trials, trials_by_id, while_tuning
from autotune.trial import Outcome, Value, is_measured

_OUTCOMES = frozenset(map(str, Outcome))


class OwnValues(NamedTuple):
    """What a trial does not share with those of its subject, run, family and launches."""

    number: int
    config: Mapping[str, Value]
    outcome: str
    reason: str
    message: str
    source_hash: str | None
    registers: int | None
    spill_bytes: int | None
    static_smem_bytes: int | None
    smem_bytes: int
    occupancy: float | None
    over_bound: float | None
    compile_us: float
    verify_us: float
    measure_us: float
    median_us: float | None
    """of a correct trial"""
    ended_at: datetime | None


Streamed = tuple[TrialRow, OwnValues | None]
"""A trial; or one of its kind, with what is its own. The kind's record is the same object again and again."""

_SHARED = (
    *(trials.c[name] for name in ("study_id", "subject_id", "device_id", "run_id", "template_id", "policy")),
    *(trials.c[name] for name in ("accuracy", "origin", "proposed_by")),
    sources.c.launches,
)
_OWN = (
    *(trials.c[name] for name in ("id", "number", "config", "outcome", "reason", "message")),
    sources.c.hash,
    *(trials.c[name] for name in ("registers", "spill_bytes", "static_smem_bytes", "smem_bytes")),
    *(trials.c[name] for name in ("occupancy", "error_over_bound", "error_max_abs")),
    *(trials.c[name] for name in ("compile_us", "verify_us", "measure_us", "started_at", "ended_at")),
    *(measurements.c[name] for name in ("id", "median_us", "samples_us", "sm_clocks_mhz")),
)
_ALSO = (
    # whose types alone are looked at, as when records are made of them
    *(trials.c[name] for name in ("reused_trial_id", "attempts", "ranked_us", "deterministic", "constant_bytes")),
    *(trials.c[name] for name in ("render_us", "load_us")),
    *(column for column in TIMING_COLUMNS if column not in _OWN),
)
_OWN_END = len(_SHARED) + len(_OWN)


@cache
def _by_ids() -> Select[*tuple[object, ...]]:
    each = func.json_each(bindparam("ids")).table_valued("value")
    return (
        select(*_SHARED, *_OWN, *_ALSO)
        .select_from(trials)
        .outerjoin(sources, sources.c.id == trials.c.source_id)
        .outerjoin(measurements, while_tuning())
        .where(trials.c.id.in_(select(each.c.value)))
    )


class TrialStream:
    """Reads trials by their ids, in little memory however many they are."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made = TrialRows(connection)
        self._kinds: dict[Sequence[Any], TrialRow] = {}

    def some(self, ids: Sequence[int]) -> Iterator[Streamed]:
        """The trials with these ids, in this order.

        Raises what `trials_by_id` does, before the first is given out, for a trial that cannot be understood.
        """
        if len(self._kinds) > MOST_KEPT:
            self._kinds.clear()
        read: dict[int, tuple[Sequence[Any], OwnValues | None]] = {}
        kinds: dict[Sequence[Any], int] = {}
        whole = []
        for values in texts_tuples_of(self._connection, _by_ids(), {"ids": json.dumps(list(ids))}):
            trial_id = values[len(_SHARED)]
            kind, own = values[: len(_SHARED)], _own(values[len(_SHARED) + 1 : _OWN_END])
            if own is None:
                whole.append(trial_id)
            elif kind not in self._kinds and kind not in kinds:
                kinds[kind] = trial_id
            read[trial_id] = kind, own
        found = trials_by_id(self._connection, (*whole, *kinds.values()), self._made)
        self._kinds.update((kind, found[trial_id]) for kind, trial_id in kinds.items() if trial_id in found)
        for trial_id in ids:
            kind, own = read.get(trial_id, ((), None))
            row = found.get(trial_id) if own is None else self._kinds.get(kind)
            if row is not None:
                yield row, own


def _own(values: Sequence[Any]) -> OwnValues | None:
    """What a row has of its own; None for one of which a record must be made to see whether that can be understood."""
    number, config, outcome, reason, message, source_hash, registers, spill, static, smem = values[:10]
    occupancy, over_bound, max_abs, compile_us, verify_us, measure_us, started_at, ended_at = values[10:18]
    measurement, median_us, samples_us, clocks_mhz = values[18:]
    try:
        settings = config_values(config)
        date_of(started_at)
        ended = None if ended_at is None else date_of(ended_at)
        if measurement is not None:
            check_numbers(samples_us)
            if clocks_mhz is not None:
                check_numbers(clocks_mhz)
        sure = (
            0 <= number <= LARGEST_NUMBER
            and outcome in _OUTCOMES
            and (over_bound is None) == (max_abs is None)
            and (measurement is None or is_measured(median_us))
        )
    except NOT_UNDERSTOOD:
        return None
    if not sure:
        return None
    timed = median_us if outcome == "correct" else None
    return OwnValues(
        number, settings, outcome, reason, message, source_hash, registers, spill, static, smem,
        occupancy, over_bound, compile_us, verify_us, measure_us, timed, ended,
    )  # fmt: skip
