"""finals -> contenders: the kernels of the finals with confidence intervals, compared with the winner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.analysis.history import caveat
from autotune.measurement.benchmark import median_half_width
from autotune.report.chart import Axis, linear
from autotune.store import FinalsRow, TrialRow, Verdict

_CLOSE = 1.05
"""a contender is close if its time is at most this multiple of the fastest time"""


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the kernels timed interleaved in the finals."""

    name: str
    """such as `winner`, `starting config` or `cudnn nhwc`; empty for another finalist"""
    row: TrialRow | None
    """the contender's trial; None for a rival, which is not a trial"""
    time_us: float
    half_us: float | None
    """half the width of the 95 % confidence interval of the median; None if no samples are stored"""
    verdict: str
    """`win`, `tie` or `loss` of the winner against this contender; empty without a verdict"""
    ratio: float
    """the contender's time divided by the winner's time"""
    caveat: str = ""

    @property
    def rival(self) -> bool:
        """Whether the contender is a rival: a kernel that a user would run without autotune."""
        return self.row is None

    @property
    def interval_us(self) -> tuple[float, float]:
        """The ends of the confidence interval, or the median twice if there is no interval."""
        return self.time_us - (self.half_us or 0.0), self.time_us + (self.half_us or 0.0)


@dataclass(frozen=True, slots=True)
class Contest:
    """Finals as a picture: the contenders, fastest first, on a time axis."""

    finals: FinalsRow
    contenders: tuple[Contender, ...]
    axis: Axis
    """a linear axis for the contenders close to the fastest, wide enough for their intervals"""

    def across(self, time_us: float) -> float | None:
        """Return a time's position on the axis in per cent, or None if it is beyond the ends."""
        return round(100 * self.axis.share(time_us), 2) if self.axis.low <= time_us <= self.axis.high else None

    def width(self, contender: Contender) -> tuple[float, float]:
        """Return the start and width of a contender's interval, in per cent."""
        low, high = (100 * self.axis.share(end) for end in contender.interval_us)
        return round(low, 2), round(high - low, 2)


def contest(finals: FinalsRow, trials: Mapping[int, TrialRow]) -> Contest | None:
    """Describe the contenders of finals. `trials` maps ids to trials. Returns None if it has none of the contenders."""
    finalists, rivals = _finalists(finals, trials), _rivals(finals)
    if not finalists and not rivals:
        return None
    found = [*(finalists or _winner_alone(finals)), *rivals]
    best_us = min(one.time_us for one in found)
    close = [end for one in found if one.time_us <= _CLOSE * best_us for end in one.interval_us]
    margin_us = 0.002 * best_us
    return Contest(
        finals=finals,
        contenders=tuple(sorted(found, key=lambda one: one.time_us)),
        axis=linear(max(close) + margin_us, min(close) - margin_us),
    )


def _finalists(finals: FinalsRow, trials: Mapping[int, TrialRow]) -> list[Contender]:
    by_number = {verdict.against_number: verdict for verdict in finals.verdicts if verdict.against_number is not None}
    found = []
    for trial_id, timing in finals.timings:
        row = trials.get(trial_id)
        if row is None:
            continue
        verdict = by_number.get(row.trial.number)
        if trial_id == finals.winner.id:
            name = "winner"
        elif verdict is None:
            name = ""
        else:
            name = "starting config" if verdict.against == "default" else verdict.against
        half_us = median_half_width(timing.samples_us) if len(timing.samples_us) > 1 else None
        found.append(
            Contender(
                name=name,
                row=row,
                time_us=timing.median_us,
                half_us=half_us,
                verdict=verdict.verdict if verdict else "",
                ratio=timing.median_us / finals.time_us,
                caveat=_caveat(verdict, finals) if verdict else "",
            )
        )
    return found


def _winner_alone(finals: FinalsRow) -> list[Contender]:
    """Return only the winner, with the time from its verdicts, if the finalists are another study's trials."""
    return [Contender("winner", finals.winner, finals.verdicts[0].median_us, None, "", 1.0)]


def _rivals(finals: FinalsRow) -> list[Contender]:
    return [
        Contender(
            name=one.against,
            row=None,
            time_us=one.against_us,
            half_us=None,
            verdict=one.verdict,
            ratio=ratio(one),
            caveat=_caveat(one, finals),
        )
        for one in finals.verdicts
        if one.against_number is None
    ]


def _caveat(verdict: Verdict, finals: FinalsRow) -> str:
    return caveat(verdict, finals.timing.launch, finals.winner.trial.accuracy)


def ratio(verdict: Verdict) -> float:
    """Return the time of the other kernel divided by the winner's time."""
    return verdict.against_us / verdict.median_us
