"""Rows of `stale` -> its cells: best results that may be out of date after a change of driver, toolkit or template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from autotune.analysis.rerender import ANOTHER, render_current
from autotune.analysis.trial_rows import config_cell, problem_of_row
from autotune.columns import Cells
from autotune.compilation.compile import Target
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected, ToolchainError
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.store import Store
from autotune.workers.compilers import CompilePool

_HASH_SHOWN = 12  # digits of a template's hash


@dataclass(frozen=True, slots=True)
class StaleResults:
    """Finds out which changes of templates matter."""

    store: Store
    families: Mapping[str, KernelTemplate]
    """the installed families, by name"""
    pool: CompilePool
    devices: Mapping[int, DeviceInfo]
    """the recorded devices, by id"""

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Cells]:
        """The rows of `Store.results.stale` that put a result in doubt.

        A change of a template's text that does not change the kernel is left out.
        """
        for row in rows:
            change = self._template_change(row) if row["changed"] == "template" else {}
            if change is not None:
                config = config_cell(row["template"], row["config"])
                date = None if row["ended_at"] is None else datetime.fromisoformat(row["ended_at"])
                yield {**row, "config": config, "date": date, **change}

    def _template_change(self, row: Mapping[str, Any]) -> Cells | None:
        """How a kernel's family has changed; None if it renders the same kernel, or one with the same machine code."""
        family = self.families.get(row["template"])
        if family is not None and family.hash == row["template_hash"]:
            return None
        problem = problem_of_row(row)
        device = self.devices[row["device_id"]]
        now = render_current(config_cell(row["template"], row["config"]), problem, device, self.families)
        if not isinstance(now, str):
            if row["source_hash"] in (None, now.hash) or self._same_machine_code(row["source_hash"], device, now):
                return None
            now = ANOTHER
        return {
            "was": row["template_hash"][:_HASH_SHOWN],
            "now": now if family is None else f"{family.hash[:_HASH_SHOWN]}, which {now}",
            "compared_with": "the installed families",
        }

    def _same_machine_code(self, source_hash: str, device: DeviceInfo, now: KernelSource) -> bool:
        """Whether a stored kernel and the one that its family renders now have the same launches and compile to the
        same cubin.

        False if that is unknown: for a device that is not a GPU, without nvcc, or if the kernel's text is not stored.
        """
        stored = self.store.sources.get(source_hash)
        if stored is None or not device.can.gpu or replace(now, program=stored.program).hash != stored.hash:
            return False
        target = Target(device.kind, device.arch)
        compiled = [self.pool.submit(source.program, target) for source in (stored, now)]
        try:
            old_cubin, new_cubin = (binary.result().image for binary in compiled)
        except (Rejected, ToolchainError):
            return False
        return old_cubin == new_cubin
