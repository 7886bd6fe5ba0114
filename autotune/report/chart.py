"""Compute the positions of a chart's axes and marks, for the SVG in the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values along one axis."""

    low: float
    high: float
    logarithmic: bool = True

    def share(self, value: float) -> float:
        """Return a value's position between 0, the low end, and 1, the high end. Values beyond an end are moved to that
        end.
        """
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> tuple[float, ...]:
        """Return round values between the ends, few enough to label."""
        if self.logarithmic and self.high / self.low > _MOST_TICKS:
            return _round_ones(self.low, self.high)
        step = _step((self.high - self.low) / _MOST_TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(float(f"{number * step:.10g}") for number in range(first, last + 1))


def logarithmic(values: Iterable[float]) -> Axis:
    """Make a logarithmic axis that spans the positive values, with a margin at both ends."""
    known = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(known), max(known)
    margin = max((high / low) ** 0.05, 1.03)
    return Axis(low / margin, high * margin)


def linear(high: float, low: float = 0.0) -> Axis:
    """Make a linear axis that spans from `low`, by default 0, to `high`."""
    return Axis(low, high if high > low else low + 1.0, logarithmic=False)


def _step(least: float) -> float:
    """Return the smallest number that is 1, 2 or 5 times a power of ten and not less than a value."""
    ten = 10.0 ** math.floor(math.log10(least))
    return float(f"{next(times for times in (1, 2, 5, 10) if times * ten >= least * 0.999999) * ten:.10g}")


def _round_ones(low: float, high: float) -> tuple[float, ...]:
    """Return the powers of ten and, if the list stays short enough, 2 and 5 times each of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for times in ((1, 2, 5), (1, 3), (1,)):
        found = tuple(
            value
            for power in range(first, last + 1)
            for of_ten in times
            if low <= (value := float(f"{of_ten}e{power}")) <= high
        )
        if len(found) <= _MOST_TICKS:
            return found
    every = -(-len(found) // _MOST_TICKS)
    return found[::every]


WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 26, 44
"""margins of the plot area, in units of the picture"""
_LINE = 17.0
"""height of a line of text, in units of the picture"""


@dataclass(frozen=True, slots=True)
class Tick:
    """A position on an axis and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with a text for the reader."""

    x: float
    y: float
    title: str
    link: str
    """the id of the element that the point links to; empty without a link"""


@dataclass(frozen=True, slots=True)
class Marks:
    """Points of one kind, drawn in the same way."""

    kind: str
    """a class of the style sheet"""
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """A trial's mark, which links to the trial's row."""

    x: float
    y: float
    row: str
    """the id of the trial's row in the page"""


@dataclass(frozen=True, slots=True)
class Dots:
    """One family's trials. Either all of them have a time, or none does."""

    kind: str
    """a class of the style sheet"""
    dots: tuple[Dot, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text in the chart."""

    x: float
    y: float
    words: str
    kind: str = ""
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything drawn in a chart, in units of a WIDTH x HEIGHT picture."""

    id: str
    title: str
    description: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]
    marks: tuple[Marks, ...] = ()
    dots: tuple[Dots, ...] = ()


@dataclass(frozen=True, slots=True)
class Plane:
    """Two axes that span a chart."""

    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return a point's position in the picture, rounded to a tenth of a unit."""
        across = LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)
        down = TOP + (1 - self.y.share(y)) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    def line(self, kind: str, points: Iterable[tuple[float, float]]) -> Line:
        """Draw straight lines from point to point."""
        placed = [self.place(*point) for point in points]
        return Line(kind, "M" + "L".join(f"{x:g} {y:g}" for x, y in placed))

    def steps(self, kind: str, points: Sequence[tuple[float, float]], until: float) -> Line:
        """Draw a step line: each value lasts until the next value begins."""
        placed = [self.place(*point) for point in points]
        end, _ = self.place(until, self.y.low)
        (x, y), *others = placed
        return Line(kind, f"M{x:g} {y:g}" + "".join(f"H{x:g}V{y:g}" for x, y in others) + f"H{end:g}")

    def ticks(self, say_x: Callable[[float], str], say_y: Callable[[float], str]) -> tuple[tuple[Tick, ...], ...]:
        """Return the labels of both axes."""
        across = tuple(Tick(self.place(value, self.y.low)[0], say_x(value)) for value in self.x.ticks())
        down = tuple(Tick(self.place(self.x.low, value)[1], say_y(value)) for value in self.y.ticks())
        return across, down


def apart(labels: Sequence[Label]) -> tuple[Label, ...]:
    """Move labels up or down so that they do not overlap and stay within the picture."""
    found: list[Label] = []
    below = TOP - _LINE / 2
    for label in sorted(labels, key=lambda label: label.y):
        below = max(below + _LINE, label.y)
        found.append(Label(label.x, below, label.words, label.kind, label.anchor))
    above = HEIGHT - BOTTOM + _LINE
    for position in range(len(found) - 1, -1, -1):
        label = found[position]
        above = min(above - _LINE, label.y)
        found[position] = Label(label.x, round(above, 1), label.words, label.kind, label.anchor)
    return tuple(found)
