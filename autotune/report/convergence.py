"""trials -> chart: the time of every trial, and the best time so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from autotune.report.chart import HEIGHT, LEFT, TOP, Axis, Chart, Dot, Dots, Label, Line, Plane, linear, logarithmic
from autotune.report.words import count, digits, microseconds
from autotune.store import TrialRow

_COLOURS = 7
"""number of families with their own colour; the other families share the last colour"""
NO_COLOURS: Mapping[str, str] = MappingProxyType({})
_SLOWEST = 16.0
"""end of the time axis as a multiple of the best time; slower trials are drawn at the end"""


@dataclass(frozen=True, slots=True)
class Family:
    """The trials of one family on a layer."""

    name: str
    kind: str
    """the family's colour, as a class of the style sheet"""
    trials: tuple[TrialRow, ...]
    best_us: float | None


def colours(layers: Iterable[Sequence[TrialRow]]) -> Mapping[str, str]:
    """Assign each family the colour that it has everywhere on the page, as a style-sheet class. Families that are fast
    on the most layers come first.
    """
    score: dict[str, float] = {}
    for trials in layers:
        for place, family in enumerate(families(trials)):
            score[family.name] = score.get(family.name, 0.0) + (0.0 if family.best_us is None else 1 / (1 + place))
    order = sorted(score, key=lambda name: (-score[name], name))
    return {name: f"f{min(place, _COLOURS)}" for place, name in enumerate(order)}


def families(trials: Sequence[TrialRow], kinds: Mapping[str, str] = NO_COLOURS) -> tuple[Family, ...]:
    """Group trials by family, starting with the fastest family and ending with families without a correct trial."""
    found: dict[str, list[TrialRow]] = {}
    for row in trials:
        found.setdefault(row.trial.config.template, []).append(row)
    best = {name: min((us for row in rows if (us := row.median_us)), default=None) for name, rows in found.items()}
    order = sorted(found, key=lambda name: (best[name] is None, best[name] or 0.0, name))
    return tuple(Family(name, kinds.get(name, f"f{_COLOURS}"), tuple(found[name]), best[name]) for name in order)


def by_trial(
    section: str, trials: Sequence[TrialRow], floor_us: float | None, kinds: Mapping[str, str]
) -> Chart | None:
    """Draw each trial's time by number, and the best time so far. Failed trials are drawn above the chart.

    Returns None if no trial has a time.
    """
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


def steps(trials: Sequence[TrialRow]) -> tuple[TrialRow, ...]:
    """Return the trials that were faster than all earlier trials."""
    timed = [(place, us) for place, row in enumerate(trials) if (us := row.median_us)]
    return tuple(trials[int(place)] for place, _ in _falling(timed))


def _falling(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that are lower than all earlier points."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def time_axis(trials: Sequence[TrialRow], floor_us: float | None) -> Axis:
    """Make an axis for the times of correct trials (at least one) and, if it is near the best time, for the floor.

    Trials slower than _SLOWEST times the best time don't extend the axis.
    """
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
    """Yield each family's failed trials, and then its trials with a time. The fastest family is drawn last."""
    places = {row.id: place for place, row in enumerate(trials)}

    def dot(row: TrialRow) -> Dot:
        x, y = plane.place(places[row.id], row.median_us or plane.y.high)
        return Dot(x, y if row.median_us else TOP - 16, row_id(section, row.id))

    of_families = families(trials, kinds)
    for family in of_families:
        if failed := tuple(dot(row) for row in family.trials if not row.median_us):
            yield Dots("bad", failed, failed=True)
    for family in reversed(of_families):
        if timed := tuple(dot(row) for row in family.trials if row.median_us):
            yield Dots(family.kind, timed)


def row_id(section: str, trial_id: int) -> str:
    """Return the id of a trial's row in a layer's section. Trial numbers start again in each environment."""
    return f"{section}t{trial_id}"
