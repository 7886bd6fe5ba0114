"""A warning about kernels that are faster than their floors, which answers with floors share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from autotune.analysis.rooflines import BestWithRoofline


def warn_faster_than_roofline(kernels: Iterable[tuple[str, str, float | None]]) -> None:
    """Warn on standard error about kernels that are faster than their floors, which means that the floors are wrong.

    Each kernel is a device, a layer and the floor divided by the kernel's time.
    """
    above: dict[str, dict[str, float]] = {}
    for device, layer, fraction in kernels:
        if fraction is not None and fraction > 1.0:
            of_device = above.setdefault(device, {})
            of_device[layer] = max(fraction, of_device.get(layer, 0.0))
    for device, fractions in above.items():
        most = max(fractions, key=fractions.__getitem__)
        others = f" (and {len(fractions) - 1} more)" if len(fractions) > 1 else ""
        click.echo(
            f"{device}: {most}{others} is {fractions[most] - 1:.1%} faster than its floor, so the floor is wrong: "
            f"the device's stored rates are too low; run `autotune devices --calibrate` there",
            err=True,
        )


def floor_of(kernel: BestWithRoofline) -> tuple[str, str, float | None]:
    """A best kernel as `warn_faster_than_roofline` takes it."""
    row = kernel.best.row
    return row.device.name, row.name, kernel.facts.floor_fraction
