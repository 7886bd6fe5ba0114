"""best -> stale: best results that may be out of date after a change of driver, toolkit or template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.analysis.rerender import ANOTHER, render_current
from autotune.compilation.compile import Target
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import Rejected, ToolchainError
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.store import BestRow, Store
from autotune.trial import LONG_US
from autotune.workers.compilers import CompilePool

_HASH_SHOWN = 12  # digits of a template's hash


@dataclass(frozen=True, slots=True)
class Present:
    """The environment with which a device's results are compared."""

    environment: Environment
    against: str
    """its source: `this machine`, or `its newest run` if the device is not here"""


@dataclass(frozen=True, slots=True)
class StaleResult:
    """One change since a best result was measured."""

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
    """The changes since `best` was last measured, in the environment `measured`.

    A change of a template's text that does not change this kernel is ignored. `is_same` tells whether a kernel that is
    rendered as another text now is still the same. `present` is None if the device's current environment is unknown.
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
    """The current environment of a device: as opened here, or else of its newest recorded run, or else unknown."""
    for source, against in ((opened, "this machine"), (recorded, "its newest run")):
        for device, environment in source:
            if device.identity == info.identity:
                return Present(environment, against)
    return None


def _template_now(
    best: BestRow, families: Mapping[str, KernelTemplate], is_same: Callable[[BestRow, KernelSource], bool]
) -> str | None:
    """How the family has changed, if that changes the kernel; None if it renders the same kernel."""
    family = families.get(best.row.trial.config.template)
    if family is not None and family.hash == best.row.template_hash:
        return None
    again = render_current(best.row, families)
    if not isinstance(again, str):
        if best.row.trial.source_hash in (None, again.hash) or is_same(best, again):
            return None
        again = ANOTHER
    return again if family is None else f"{family.hash[:_HASH_SHOWN]}, which {again}"


def same_machine_code(store: Store, pool: CompilePool, best: BestRow, now: KernelSource) -> bool:
    """Whether a best kernel and the one that its family renders now have the same launches and compile to the same
    cubin.

    False if that is unknown: for a device that is not a GPU, without nvcc, or if the kernel's text is not stored.
    """
    device = best.row.device
    stored = store.sources.get(best.row.trial.source_hash or "")
    if stored is None or not device.can.gpu or replace(now, program=stored.program).hash != stored.hash:
        return False
    target = Target(device.kind, device.arch)
    compiled = [pool.submit(source.program, target) for source in (stored, now)]
    try:
        old_cubin, new_cubin = (binary.result().image for binary in compiled)
    except (Rejected, ToolchainError):
        return False
    return old_cubin == new_cubin
