"""best -> stale: which best results an upgraded driver, toolkit or template has made doubtful."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.analysis.rerender import ANOTHER, render_current
from autotune.devices.device import DeviceInfo, Environment
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.store import BestRow
from autotune.trial import LONG_US

_HASH_SHOWN = 12  # digits of a template's hash


@dataclass(frozen=True, slots=True)
class Present:
    """What a device's results are compared with."""

    environment: Environment
    against: str
    """where it comes from: `this machine`, or `its newest run` where no such device is here"""


@dataclass(frozen=True, slots=True)
class StaleResult:
    """One thing that has changed since a best result was measured."""

    best: BestRow
    changed: str
    """driver, toolkit, flags, launch or template"""
    was: str
    now: str
    against: str


def stale_results(
    best: BestRow,
    measured: Environment,
    present: Present | None,
    families: Mapping[str, KernelTemplate],
    is_same: Callable[[BestRow, KernelSource], bool],
) -> tuple[StaleResult, ...]:
    """What has changed since `best` was last measured, in the environment `measured`.

    A template whose text changed without changing this kernel makes nothing doubtful. `is_same` says of a kernel that
    is rendered as another text today whether that is the best result's all the same. `present` is None where nothing
    is known of the device's environment now.
    """
    found = []
    if present is not None:
        found = [
            StaleResult(best, changed, was, now, present.against)
            for changed, was, now in (
                ("driver", measured.driver, present.environment.driver),
                ("toolkit", measured.toolkit, present.environment.toolkit),
                ("flags", measured.flags, present.environment.flags),
            )
            if was != now
        ]
    if best.row.device.can.graphs and best.timing.launch == "stream" and best.timing.median_us < LONG_US:
        found.append(StaleResult(best, "launch", "stream, with launch gaps", "graph", "how short kernels are timed"))
    now = _template_now(best, families, is_same)
    if now is not None:
        found.append(StaleResult(best, "template", best.row.template_hash[:_HASH_SHOWN], now, "the installed families"))
    return tuple(found)


def present_of(
    info: DeviceInfo,
    opened: Sequence[tuple[DeviceInfo, Environment]],
    recorded: Sequence[tuple[DeviceInfo, Environment]],
) -> Present | None:
    """What a device is driven by now: as opened here, else as its newest run recorded it, else unknown."""
    for source, against in ((opened, "this machine"), (recorded, "its newest run")):
        for device, environment in source:
            if device.identity == info.identity:
                return Present(environment, against)
    return None


def _template_now(
    best: BestRow, families: Mapping[str, KernelTemplate], is_same: Callable[[BestRow, KernelSource], bool]
) -> str | None:
    """What the family has become, if that puts the kernel in doubt; None when it renders the very same kernel."""
    family = families.get(best.row.trial.config.template)
    if family is not None and family.hash == best.row.template_hash:
        return None
    again = render_current(best.row, families)
    if not isinstance(again, str):
        if best.row.trial.source_hash in (None, again.hash) or is_same(best, again):
            return None
        again = ANOTHER
    return again if family is None else f"{family.hash[:_HASH_SHOWN]}, which {again}"
