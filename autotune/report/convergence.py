"""trials -> charts: every trial's time, and the best so far by trial and by second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from autotune.report.axis import Axis, linear, logarithmic
from autotune.report.chart import HEIGHT, LEFT, TOP, Chart, Dots, Label, Line, Plane
from autotune.report.words import count, digits, microseconds
from autotune.store import TrialRow

_COLOURS = 7
"""number of families with their own colour; the others share the last class"""
NO_COLOURS: Mapping[str, str] = MappingProxyType({})
_SLOWEST = 16.0
"""end of the time axis as a multiple of the best time; slower trials are at its end"""


@dataclass(frozen=True, slots=True)
class Family:
    """A family's trials in a layer."""

    name: str
    kind: str
    """its colour, as a class of the style sheet"""
    trials: tuple[TrialRow, ...]
    best_us: float | None


def colours(layers: Iterable[Sequence[TrialRow]]) -> Mapping[str, str]:
    """Each family's colour in the whole page, as a class of the style sheet; often fast families come first."""
    score: dict[str, float] = {}
    for trials in layers:
        for place, family in enumerate(families(trials)):
            score[family.name] = score.get(family.name, 0.0) + (0.0 if family.best_us is None else 1 / (1 + place))
    order = sorted(score, key=lambda name: (-score[name], name))
    return {name: f"f{min(place, _COLOURS)}" for place, name in enumerate(order)}


def families(trials: Sequence[TrialRow], kinds: Mapping[str, str] = NO_COLOURS) -> tuple[Family, ...]:
    """The families of trials, fastest first; those without a correct trial last."""
    found: dict[str, list[TrialRow]] = {}
    for row in trials:
        found.setdefault(row.trial.config.template, []).append(row)
    best = {name: min((us for row in rows if (us := row.median_us)), default=None) for name, rows in found.items()}
    order = sorted(found, key=lambda name: (best[name] is None, best[name] or 0.0, name))
    return tuple(Family(name, kinds.get(name, f"f{_COLOURS}"), tuple(found[name]), best[name]) for name in order)


def by_trial(
    section: str, trials: Sequence[TrialRow], floor_us: float | None, kinds: Mapping[str, str]
) -> Chart | None:
    """Every trial's time by number, with the best so far; None if none has a time. Failed trials are at the top."""
    timed = [(place, us) for place, row in enumerate(trials) if (us := row.median_us)]
    if not timed:
        return None
    plane = Plane(linear(len(trials) - 1), time_axis(trials, floor_us))
    best = _falling(timed)
    failed = len(trials) - len(timed)
    beyond = sum(us > plane.y.high for _, us in timed)
    asides = f", {beyond} of them slower than {microseconds(plane.y.high)} (at the upper end)" if beyond else ""
    asides += f", {failed} without a time" if failed else ""
    x_ticks, y_ticks = plane.ticks(digits, microseconds)
    lines, labels = _floor(plane, floor_us)
    return Chart(
        id=f"{section}-trials",
        title="Every trial and the best so far",
        description=f"{count(len(trials), 'trial')}{asides}. The best fell from {microseconds(best[0][1])} to "
        f"{microseconds(best[-1][1])} in {count(len(best), 'step')}.",
        x_label="trials, in their order",
        y_label="",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        lines=(*lines, plane.steps("best", best, plane.x.high)),
        labels=labels,
        dots=tuple(_dots(section, plane, trials, kinds)),
    )


def rows_of(section: str, family: int) -> str:
    """Prefix of the ids of a family's rows in a layer's section."""
    return f"{section}f{family}r"


def by_second(
    section: str, trials: Sequence[TrialRow], floor_us: float | None, kinds: Mapping[str, str]
) -> Chart | None:
    """The best so far, overall and by family, by seconds since the first trial began; None if none has a time."""
    begun = min(row.started_at for row in trials)
    ended = {row.id: (row.ended_at - begun).total_seconds() for row in trials if row.ended_at is not None}
    found = families(trials, kinds)
    falls = [(one.kind, _fall_by_second(one.trials, ended)) for one in found]
    whole = _fall_by_second(trials, ended)
    if not whole:
        return None
    end_s = max(ended.values())
    plane = Plane(linear(end_s), time_axis(trials, floor_us))
    x_ticks, y_ticks = plane.ticks(digits, microseconds)
    lines, labels = _floor(plane, floor_us)
    seen = [(kind, [point for point in fall if point[1] <= plane.y.high]) for kind, fall in falls]
    return Chart(
        id=f"{section}-seconds",
        title="Best so far by second",
        description=f"{count(len(trials), 'trial')} in {digits(end_s, 3)} s, compiling and verifying included; "
        f"within 1 % of the best after {digits(_near_best_s(whole), 3)} s.",
        x_label="seconds since the first trial began",
        y_label="",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        lines=(
            *lines,
            *(plane.steps(kind, fall, plane.x.high) for kind, fall in reversed(seen) if fall),
            plane.steps("best", whole, plane.x.high),
        ),
        labels=labels,
    )


def steps(trials: Sequence[TrialRow]) -> tuple[TrialRow, ...]:
    """The trials that were faster than all earlier ones."""
    timed = [(place, us) for place, row in enumerate(trials) if (us := row.median_us)]
    return tuple(trials[int(place)] for place, _ in _falling(timed))


def _falling(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that are lower than all earlier ones."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def _fall_by_second(trials: Sequence[TrialRow], ended: Mapping[int, float]) -> list[tuple[float, float]]:
    points = [(max(ended[row.id], 0.0), us) for row in trials if (us := row.median_us) and row.id in ended]
    return _falling(sorted(points))


def _near_best_s(fall: Sequence[tuple[float, float]]) -> float:
    """When the best so far came within 1 % of the final best."""
    return next(second for second, us in fall if us <= 1.01 * fall[-1][1])


def time_axis(trials: Sequence[TrialRow], floor_us: float | None) -> Axis:
    """An axis for the times of correct trials (at least one) and for the floor if it is near; bounded above."""
    timed = [us for row in trials if (us := row.median_us)]
    best_us = min(timed)
    near = [floor_us] if floor_us is not None and floor_us > best_us / _SLOWEST else []
    return logarithmic([*(min(us, _SLOWEST * best_us) for us in timed), *near])


def _floor(plane: Plane, floor_us: float | None) -> tuple[tuple[Line, ...], tuple[Label, ...]]:
    if floor_us is None or not plane.y.low <= floor_us <= plane.y.high:
        return (), ()
    line = plane.line("least", [(plane.x.low, floor_us), (plane.x.high, floor_us)])
    _, y = plane.place(plane.x.low, floor_us)
    return (line,), (Label(LEFT + 6, round(min(y + 13, HEIGHT - 4), 1), f"floor {microseconds(floor_us)}", "least"),)


def _dots(section: str, plane: Plane, trials: Sequence[TrialRow], kinds: Mapping[str, str]) -> Iterator[Dots]:
    """The failed trials of each family at the top, then the trials with a time; the fastest family is drawn last."""
    places = {row.id: place for place, row in enumerate(trials)}
    numbered = list(enumerate(families(trials, kinds)))
    for number, one in numbered:
        failed = [plane.place(places[row.id], plane.y.high)[0] for row in one.trials if not row.median_us]
        if failed:
            yield Dots("bad", rows_of(section, number), "".join(f"M{x:g} {TOP - 16}v9" for x in failed), failed=True)
    for number, one in reversed(numbered):
        placed = [plane.place(places[row.id], us) for row in one.trials if (us := row.median_us)]
        if placed:
            yield Dots(one.kind, rows_of(section, number), "".join(f"M{x:g} {y:g}h0" for x, y in placed))
