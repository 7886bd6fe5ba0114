"""best -> rooflines: compare best kernels and trials with their devices' limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.devices.device import DeviceInfo
from autotune.family.source import Stage
from autotune.measurement.occupancy import Residency, residency
from autotune.measurement.roofline import Floor, floor
from autotune.measurement.traffic import minimal_bytes
from autotune.problem import Problem
from autotune.trial import Resources

NEAR_FLOOR = 0.6  # from this fraction of the floor on, a kernel is limited by the floor's larger term
FEW_WARPS = 0.25  # theoretical occupancy below which too few warps probably explain a large distance from the floor


@dataclass(frozen=True, slots=True)
class Facts:
    """A measured kernel and its device's limits. Fields are None if the device isn't a GPU or isn't calibrated."""

    residency: Residency | None
    """residency of the stage with the fewest resident warps"""
    gb_per_s: float | None
    """the bytes that any implementation of the layer must move, divided by the time"""
    floor: Floor | None
    floor_fraction: float | None
    """floor divided by time; 1 at the physical limit, above 1 if the calibrated rates are too low"""
    limiter: str | None
    """near the floor, memory or arithmetic; far from the floor, occupancy if few warps are resident, else latency"""


def facts(
    device: DeviceInfo,
    problem: Problem,
    accuracy: str,
    stages: Sequence[Stage],
    resources: Resources,
    median_us: float | None,
    rates: Mapping[str, float],
    flops: int | None = None,
) -> Facts:
    """Compute the facts about a kernel.

    `median_us` is None if the kernel wasn't timed, and `flops` is None if it uses the direct algorithm.
    """
    on_gpu = device.can.gpu and resources.registers > 0  # otherwise no compiler reported the resources
    held = least_occupied(device, stages, resources) if on_gpu else None
    if median_us is None:
        return Facts(held, None, None, None, None)
    bound = None if device.can.cpu else floor(problem, accuracy, rates, flops)
    return Facts(
        residency=held,
        gb_per_s=minimal_bytes(problem) / median_us / 1e3,
        floor=bound,
        floor_fraction=None if bound is None else bound.us / median_us,
        limiter=_limiter(bound, median_us, held) if bound is not None and held is not None else None,
    )


def least_occupied(device: DeviceInfo, stages: Sequence[Stage], resources: Resources) -> Residency | None:
    """Return the residency of the stage with the fewest resident warps, or None if there are no stages."""
    held = [
        residency(
            device,
            threads=stage.block[0] * stage.block[1] * stage.block[2],
            registers=resources.registers,
            smem_bytes=stage.smem_bytes + resources.static_smem_bytes,
        )
        for stage in stages
    ]
    return min(held, key=lambda stage: stage.occupancy, default=None)


def _limiter(bound: Floor, median_us: float, held: Residency) -> str:
    if bound.us / median_us >= NEAR_FLOOR:
        return bound.term
    return "occupancy" if held.occupancy < FEW_WARPS else "latency"


if TYPE_CHECKING:
    from autotune.store import BestRow, Store


@dataclass(frozen=True, slots=True)
class BestWithRoofline:
    """A row of `best`, with facts about its kernel."""

    best: BestRow
    facts: Facts

    @property
    def floor_us(self) -> float | None:
        """The floor in microseconds, or None if the device wasn't calibrated."""
        return self.facts.floor.us if self.facts.floor else None


def with_roofline(store: Store, row: BestRow) -> BestWithRoofline:
    """Add the facts about the kernel to a row of `best`."""
    kernel, trial, rates = row.row, row.row.trial, store.rates.best(row.row.device)
    what = (kernel.device, kernel.problem, trial.accuracy, kernel.stages, trial.resources)
    return BestWithRoofline(row, facts(*what, row.median_us, rates, kernel.flops))
