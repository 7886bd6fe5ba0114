"""Rows of `stale` -> its cells: best results that may be out of date after a change of driver, toolkit or template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.analysis.rerender import ANOTHER, render_current
from autotune.analysis.trial_rows import config_cell, problem_of_row
from autotune.columns import Cells
from autotune.devices.device import DeviceInfo
from autotune.family.template import KernelTemplate

_HASH_SHOWN = 12  # digits of a template's hash


@dataclass(frozen=True, slots=True)
class StaleResults:
    """Finds out which changes of templates matter."""

    families: Mapping[str, KernelTemplate]
    """as installed"""
    devices: Mapping[int, DeviceInfo]
    """by their ids"""

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
        """How a kernel's family has changed; None if it renders the same kernel."""
        family = self.families.get(row["template"])
        if family is not None and family.hash == row["template_hash"]:
            return None
        problem = problem_of_row(row)
        device = self.devices[row["device_id"]]
        now = render_current(config_cell(row["template"], row["config"]), problem, device, self.families)
        if not isinstance(now, str):
            if row["source_hash"] in (None, now.hash):
                return None
            now = ANOTHER
        return {
            "was": row["template_hash"][:_HASH_SHOWN],
            "now": now if family is None else f"{family.hash[:_HASH_SHOWN]}, which {now}",
            "compared_with": "the installed families",
        }
