"""best -> history: how the best of a layer came to be what it is, event by event."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.devices.device import Environment
from autotune.store import FinalsRow, RetimeRow, TrialRow

EVENTS = ("improvement", "finals", "retime")


@dataclass(frozen=True, slots=True)
class Event:
    """A date at which the best changed, or was measured again."""

    date: datetime
    event: str
    """one of EVENTS"""
    row: TrialRow
    """the new best, the finals' winner or the trial that was re-timed"""
    environment: Environment
    """of this measurement"""
    time_us: float | None
    """None when the trial failed"""
    over_before: float | None
    """time over what stood before: the previous best of an improvement, else the trial's own earlier time"""
    note: str
    """what the finals or the retime said"""


def history(
    improvements: Sequence[TrialRow], finals: Sequence[FinalsRow], retimes: Sequence[RetimeRow]
) -> tuple[Event, ...]:
    """Every event, oldest first; a non-deterministic kernel's only where it beat the deterministic ones."""
    events = [*_improvements(improvements), *map(_of_finals, finals), *map(_of_retime, retimes)]
    return tuple(sorted(events, key=lambda event: (event.date, EVENTS.index(event.event))))


def _improvements(rows: Sequence[TrialRow]) -> list[Event]:
    standing: dict[Hashable, float] = {}
    events = []
    for row in rows:
        kind = (row.problem, row.device.identity, row.trial.accuracy, row.policy)
        time_us, steady_us = row.median_us or 0.0, standing.get((kind, True))
        if not row.trial.deterministic and steady_us is not None and steady_us <= time_us:
            continue
        before = standing.get((kind, row.trial.deterministic))
        ratio = None if before is None else time_us / before
        events.append(Event(row.ended_at or row.started_at, "improvement", row, row.environment, time_us, ratio, ""))
        standing[kind, row.trial.deterministic] = time_us
    return events


def _of_finals(finals: FinalsRow) -> Event:
    words = [f"{verdict.verdict} against {verdict.against}" for verdict in finals.verdicts]
    if finals.origin == "imported":
        words.insert(0, "imported")
    if finals.superseded_at is not None:
        words.append(f"put in doubt {finals.superseded_at:%Y-%m-%d %H:%M}")
    row, time_us = finals.winner, finals.time_us
    ratio = time_us / row.median_us if time_us is not None and row.median_us else None
    return Event(finals.ended_at, "finals", row, finals.environment, time_us, ratio, ", ".join(words))


def _of_retime(retime: RetimeRow) -> Event:
    after_us = retime.after_us
    ratio = None if after_us is None else after_us / retime.before_us
    note = f"{retime.label}: {retime.message}" if retime.message else retime.label
    return Event(retime.ended_at, "retime", retime.row, retime.environment, after_us, ratio, note)
