"""Facts about a kernel that need no profiler: its occupancy, its rate, what may limit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.devices.device import DeviceInfo
from autotune.family.source import Stage
from autotune.measurement.occupancy import Residency, residency
from autotune.measurement.roofline import Floor, floor
from autotune.measurement.traffic import minimal_bytes
from autotune.problem import Problem
from autotune.trial import Resources

NEAR_FLOOR = 0.6  # share of the floor's speed from which its larger term counts as the limiter
FEW_WARPS = (
    0.25  # theoretical occupancy below which too few warps are the likely reason for a large distance from the floor
)


@dataclass(frozen=True, slots=True)
class Facts:
    """A measured kernel and its device's limits. None if the device is not a GPU or was not calibrated."""

    residency: Residency | None
    """of the stage with the lowest"""
    gb_per_s: float | None
    """the bytes that any implementation of the layer moves, divided by the time"""
    floor: Floor | None
    floor_fraction: float | None
    """floor divided by time; 1 at the physical limit, more if the rates are too low"""
    limiter: str | None
    """memory or arithmetic near the floor; far from it occupancy where warps are few, else latency"""


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
    """All facts about one kernel; `median_us` is None if it was not timed, `flops` if its algorithm is direct."""
    on_gpu = device.can.gpu and resources.registers > 0  # else no compiler reported them
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
    """The residency of the stage with the fewest warps; None without stages."""
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
