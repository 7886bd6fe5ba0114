"""best -> stale: best results that may be out of date after a change of driver, toolkit, timing or template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
class StaleResult:
    """A change since a best kernel was last measured."""

    best: BestRow
    changed: str
    """driver, toolkit, flags, launch or template"""
    was: str
    now: str
    compared_with: str


class Changes:
    """Finds the changes since best kernels were last measured."""

    def __init__(self, store: Store, what: str | None, opened: Iterable[tuple[DeviceInfo, Environment]]) -> None:
        """`opened` are the devices in this machine; other devices are compared with their newest recorded run."""
        self._retimed = {row.row.id: row.environment for row in store.retimes.list(what) if row.timing}
        self._here = {device.identity: environment for device, environment in opened}
        self._newest = store.devices.newest_environments()

    def of(self, best: BestRow) -> Iterator[StaleResult]:
        """The changes of the environment, and of the way in which short kernels are timed."""
        row = best.row
        was = self._retimed.get(row.id, row.environment)
        here = self._here.get(row.device.identity)
        now = here or self._newest[row.device.identity]
        for name in ("driver", "toolkit", "flags"):
            before, after = getattr(was, name), getattr(now, name)
            if before != after:
                yield StaleResult(best, name, before, after, "this machine" if here else "its newest run")
        if row.device.can.graphs and best.timing.launch == "stream" and best.median_us < LONG_US:
            yield StaleResult(best, "launch", "stream, with launch gaps", "graph", "how short kernels are timed")


def template_change(
    best: BestRow, store: Store, families: Mapping[str, KernelTemplate], pool: CompilePool
) -> Iterator[StaleResult]:
    """The change of a kernel's family, unless it renders the same kernel, or one with the same machine code."""
    row = best.row
    family = families.get(row.trial.config.template)
    if family is not None and family.hash == row.template_hash:
        return
    now = render_current(row.trial.config, row.problem, row.device, families)
    if not isinstance(now, str):
        if row.trial.source_hash in (None, now.hash) or _same_machine_code(best, now, store, pool):
            return
        now = ANOTHER
    text = now if family is None else f"{family.hash[:_HASH_SHOWN]}, which {now}"
    yield StaleResult(best, "template", row.template_hash[:_HASH_SHOWN], text, "the installed families")


def _same_machine_code(best: BestRow, now: KernelSource, store: Store, pool: CompilePool) -> bool:
    """Whether a stored kernel and the one that its family renders now have the same launches and compile to the same
    cubin.

    False if that is unknown: for a device that is not a GPU, without nvcc, or if the kernel's text is not stored.
    """
    device, stored = best.row.device, store.sources.get(best.row.trial.source_hash or "")
    if stored is None or not device.can.gpu or replace(now, program=stored.program).hash != stored.hash:
        return False
    compiled = [pool.submit(source.program, Target(device.kind, device.arch)) for source in (stored, now)]
    try:
        old_cubin, new_cubin = (binary.result().image for binary in compiled)
    except (Rejected, ToolchainError):
        return False
    return old_cubin == new_cubin
