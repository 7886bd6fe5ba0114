"""A warning about kernels that are faster than their floors, which answers with floors share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from autotune.analysis.rooflines import BestWithRoofline


def warn_faster_than_roofline(kernels: Iterable[tuple[str, str, float | None, str]]) -> None:
    """Warn on standard error about kernels that are faster than their floors, which means that the floors are wrong.

    Each kernel is a device, a layer, the floor divided by the kernel's time, and its rate in words if FLOPs make the
    floor.
    """
    above: dict[str, dict[str, tuple[float, str]]] = {}
    for device, layer, fraction, rate in kernels:
        if fraction is not None and fraction > 1.0:
            of_device = above.setdefault(device, {})
            of_device[layer] = max((fraction, rate), of_device.get(layer, (0.0, "")))
    for device, fractions in above.items():
        most = max(fractions, key=fractions.__getitem__)
        fraction, rate = fractions[most]
        others = f" (and {len(fractions) - 1} more)" if len(fractions) > 1 else ""
        click.echo(
            f"{device}: {most}{others} is {fraction - 1:.1%} faster than its floor, so the floor is wrong: "
            f"{rate}the device's stored rates are too low; run `autotune devices --calibrate` there",
            err=True,
        )


def floor_of(kernel: BestWithRoofline) -> tuple[str, str, float | None, str]:
    """A best kernel as `warn_faster_than_roofline` takes it."""
    row, floor, rate = kernel.best.row, kernel.facts.floor, ""
    if floor is not None and floor.term == "arithmetic":
        flops = row.flops or row.problem.flops
        own, device = (flops / us / 1e6 for us in (kernel.best.median_us, floor.us))
        rate = (
            f"{flops:.4g} FLOP in {kernel.best.median_us:.4g} us are {own:.4g} TFLOP/s, and the device's rate is "
            f"{device:.4g}; `flops` counts too many, or "
        )
    return row.device.name, row.name, kernel.facts.floor_fraction, rate
