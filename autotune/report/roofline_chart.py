"""results -> chart: a roofline, which plots kernels' FLOP/s against their FLOPs per byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.devices.device import Rate, best_rates
from autotune.measurement.roofline import ARITHMETIC_RATE
from autotune.measurement.traffic import minimal_bytes
from autotune.problem import Problem
from autotune.report.chart import LEFT, TOP, WIDTH, Chart, Label, Line, Mark, Marks, Plane, apart, logarithmic
from autotune.report.words import count, digits, microseconds, rate

_UNIT_NAMES = {"fp32": "FFMA", "tf32": "TF32 tensor cores", "fp16": "16-bit tensor cores"}


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """The position of a kernel, a rival or the floor."""

    name: str
    problem: Problem
    time_us: float
    kind: str
    """a class of the style sheet"""
    accuracy: str = ""
    link: str = ""
    """the id of the element that the point links to"""
    labelled: bool = True

    @property
    def intensity(self) -> float:
        """FLOPs of the direct algorithm, divided by the bytes that any implementation must move."""
        return self.problem.flops / minimal_bytes(self.problem)

    @property
    def flop_per_s(self) -> float:
        """FLOP/s of the direct algorithm."""
        return self.problem.flops / self.time_us * 1e6


def roofline(
    id: str,  # noqa: A002  # of the element
    points: Sequence[RooflinePoint],
    rates: Sequence[Rate],
) -> Chart | None:
    """Draw a roofline with a device's calibrated rates. Returns None if it has none or there are no points."""
    best = best_rates(rates)
    if "copy" not in best or not points:
        return None
    roofs = _roofs(best, {one.accuracy for one in points})
    if not roofs:
        return None
    ridges = [flop_per_s / best["copy"] for flop_per_s in roofs.values()]
    plane = Plane(
        logarithmic([*(one.intensity / 3 for one in points), *(3 * one.intensity for one in points), *ridges]),
        logarithmic([*(one.flop_per_s for one in points), *roofs.values()]),
    )
    x_ticks, y_ticks = plane.ticks(lambda value: digits(value, 3), lambda value: f"{digits(value / 1e12, 3)} T")
    kinds = dict.fromkeys(one.kind for one in points)
    return Chart(
        id=id,
        title="Roofline",
        description=f"{count(len(points), 'point')} below the copy rate of {rate(best['copy'], 'B')} and "
        + ", ".join(f"{rate(flop_per_s, 'FLOP')} of {_UNIT_NAMES[unit]}" for unit, flop_per_s in roofs.items())
        + ".",
        x_label="FLOP per byte moved at least",
        y_label="TFLOP/s of the direct algorithm",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        lines=tuple(_roof_lines(plane, best["copy"], roofs)),
        marks=tuple(Marks(kind, _marks(plane, [one for one in points if one.kind == kind])) for kind in kinds),
        labels=apart([*_roof_labels(plane, roofs), *_labels(plane, points)]),
    )


def _roofs(best: dict[str, float], accuracies: set[str]) -> dict[str, float]:
    """Return the units that the accuracy classes use, FFMA first, with their rates in operations of the class."""
    units = {"fp32": best["fp32"]} if "fp32" in best else {}
    for accuracy in sorted(accuracies & ARITHMETIC_RATE.keys()):
        unit, _ = ARITHMETIC_RATE[accuracy]
        if unit in best:
            units[unit] = best[unit]
    return units


def _roof_lines(plane: Plane, copy: float, roofs: dict[str, float]) -> list[Line]:
    """Draw the memory slope up to the highest roof, and a level line for each unit where that unit is the limit."""
    highest = max(roofs.values())
    begin = max(plane.x.low, plane.y.low / copy)
    lines = [plane.line("roof", [(begin, begin * copy), (highest / copy, highest)])]
    for flop_per_s in roofs.values():
        lines.append(plane.line("roof", [(flop_per_s / copy, flop_per_s), (plane.x.high, flop_per_s)]))
    return lines


def _roof_labels(plane: Plane, roofs: dict[str, float]) -> list[Label]:
    found = []
    for unit, flop_per_s in roofs.items():
        x, y = plane.place(plane.x.high, flop_per_s)
        found.append(Label(x, round(max(y - 5, TOP - 4), 1), _UNIT_NAMES[unit], "roof", "end"))
    return found


def _marks(plane: Plane, points: Sequence[RooflinePoint]) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            *plane.place(one.intensity, one.flop_per_s),
            f"{one.name}: {microseconds(one.time_us)}, {rate(one.flop_per_s, 'FLOP')}",
            one.link,
        )
        for one in points
    )


def _labels(plane: Plane, points: Sequence[RooflinePoint]) -> list[Label]:
    """Place names next to the points, on the side with more space."""
    named = [one for one in points if one.labelled]
    found: list[Label] = []
    for one in named:
        x, y = plane.place(one.intensity, one.flop_per_s)
        to_left = x - LEFT > WIDTH - x
        found.append(
            Label(x - 9 if to_left else x + 9, y + 4, one.name, f"of-{one.kind}", "end" if to_left else "start")
        )
    return found
