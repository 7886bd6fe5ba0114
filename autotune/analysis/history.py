"""best -> history: how the best of a layer came to be what it is, event by event."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.devices.device import BASELINES, Environment
from autotune.store import FinalsRow, RetimeRow, TrialRow, Verdict
from autotune.trial import LONG_US, Timing, comparable

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
    sequence: int
    """the place of its last measurement among all of the database's"""


def history(
    improvements: Sequence[TrialRow], finals: Sequence[FinalsRow], retimes: Sequence[RetimeRow]
) -> tuple[Event, ...]:
    """Every event, oldest first; a non-deterministic kernel's only where it beat the deterministic ones."""
    events = [*_improvements(improvements), *map(_of_finals, finals), *map(_of_retime, retimes)]
    return tuple(sorted(events, key=lambda event: (event.sequence, EVENTS.index(event.event))))


def _improvements(rows: Sequence[TrialRow]) -> list[Event]:
    best_us: dict[Hashable, float] = {}
    timings: dict[Hashable, Timing | None] = {}
    events = []
    for row in rows:
        kind = (row.problem, row.device.identity, row.trial.accuracy, row.measurement_mode)
        time_us, steady_us = row.median_us, best_us.get((kind, True))
        if time_us is None:
            continue  # another program has taken its measurement
        if not row.trial.deterministic and steady_us is not None and steady_us <= time_us:
            continue
        before, earlier = best_us.get((kind, row.trial.deterministic)), timings.get((kind, row.trial.deterministic))
        alike = earlier is None or row.trial.timing is None or comparable(earlier, row.trial.timing)
        ratio = time_us / before if before is not None and alike else None
        date = row.ended_at or row.started_at
        events.append(Event(date, "improvement", row, row.environment, time_us, ratio, "", row.sequence))
        best_us[kind, row.trial.deterministic] = time_us
        timings[kind, row.trial.deterministic] = row.trial.timing
    return events


def _of_finals(finals: FinalsRow) -> Event:
    words = [f"{verdict.verdict} against {verdict.against}{caveat(verdict, finals)}" for verdict in finals.verdicts]
    if finals.origin == "imported":
        words.insert(0, "imported")
    if finals.superseded_at is not None:
        words.append(f"put in doubt {finals.superseded_at:%Y-%m-%d %H:%M}")
    row, time_us = finals.winner, finals.time_us
    timing, own = finals.timing, row.trial.timing
    ratio = timing.median_us / own.median_us if timing and own and comparable(timing, own) else None
    note = ", ".join(words)
    return Event(finals.ended_at, "finals", row, finals.environment, time_us, ratio, note, finals.sequence)


def caveat(verdict: Verdict, finals: FinalsRow) -> str:
    """Why a verdict must not be believed, or is one on other work; empty where neither holds."""
    launched = finals.timing is not None and finals.timing.launch == "stream"
    if (
        verdict.against.startswith(tuple(BASELINES))
        and launched
        and min(verdict.median_us, verdict.against_us) < LONG_US
    ):
        return " (not valid: timed with launch gaps)"
    accuracy = verdict.against_accuracy
    return "" if accuracy in (None, finals.winner.trial.accuracy) else f" (another accuracy class, {accuracy})"


def _of_retime(retime: RetimeRow) -> Event:
    note = f"{retime.label}: {retime.message}" if retime.message else retime.label
    after_us, ratio = retime.after_us, retime.ratio
    return Event(retime.ended_at, "retime", retime.row, retime.environment, after_us, ratio, note, retime.sequence)
