"""Warn about kernels that are faster than their floors, which means that the floors are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from autotune.analysis.facts import Facts
    from autotune.columns import Cells
    from autotune.store import TrialRow


class AboveRoofline:
    """Collects kernels that are faster than their floors while rows are shown, and warns about them afterwards."""

    def __init__(self) -> None:
        self.rows = 0
        """number of kernels shown"""
        self._devices: dict[str, dict[str, float]] = {}

    def seen(self, found: Iterable[Cells]) -> Iterator[Cells]:
        """Yield the rows and note each."""
        for trial in found:
            self.note(trial["device"], trial["layer"], trial["floor_fraction"])
            yield trial

    def note(self, device: str, layer: str, floor_fraction: float | None) -> None:
        """Note a row."""
        self.rows += 1
        if (fraction := floor_fraction or 0.0) > 1.0:
            of_device = self._devices.setdefault(device, {})
            of_device[layer] = max(fraction, of_device.get(layer, 0.0))

    def add(self, more: AboveRoofline) -> None:
        """Add the kernels that another instance noted."""
        self.rows += more.rows
        for device, fractions in more._devices.items():
            of_device = self._devices.setdefault(device, {})
            for layer, fraction in fractions.items():
                of_device[layer] = max(fraction, of_device.get(layer, 0.0))

    def warn(self) -> None:
        """Print a warning for each device on standard error."""
        for device, fractions in self._devices.items():
            most = max(fractions, key=fractions.__getitem__)
            others = f" (and {len(fractions) - 1} more)" if len(fractions) > 1 else ""
            click.echo(
                f"{device}: {most}{others} is {fractions[most] - 1:.1%} faster than its floor, so the floor is wrong: "
                f"the device's stored rates are too low; run `autotune devices --calibrate` there",
                err=True,
            )


def warn_faster_than_roofline(found: Iterable[tuple[TrialRow, Facts]]) -> None:
    """Warn on standard error about kernels that are faster than their floors."""
    above = AboveRoofline()
    for row, facts_of_it in found:
        above.note(row.device.name, row.name, facts_of_it.floor_fraction)
    above.warn()
