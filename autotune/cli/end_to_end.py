"""The end-to-end part of `tune`: a layer's time from host memory to host memory, and the gain from overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from autotune.cli.tables import show
from autotune.columns import Column

if TYPE_CHECKING:
    from autotune.store import BestRow, EndToEndRow
    from autotune.tuning.end_to_end import EndToEndResult


@dataclass(frozen=True, slots=True)
class _Line:
    result: EndToEndResult
    kernel: BestRow
    row: EndToEndRow

    def value(self, name: str) -> int | str:
        """A choice of the plan."""
        return self.row.row.trial.config.params[name]

    @property
    def median_us(self) -> float:
        """Host to host."""
        return self.row.row.median_us or 0.0

    @property
    def copy_us(self) -> float:
        """Both ways."""
        return self.row.parts.copy_in_us + self.row.parts.copy_out_us


_COLUMNS = (
    Column[_Line]("layer", lambda line: line.result.name),
    Column[_Line]("pinned", lambda line: line.value("pinned")),
    Column[_Line]("streams", lambda line: line.value("streams")),
    Column[_Line]("segments", lambda line: line.value("segments")),
    Column[_Line]("median_us", lambda line: line.median_us),
    Column[_Line]("kernel_us", lambda line: line.row.parts.kernel_us),
    Column[_Line]("copy_us", lambda line: line.copy_us),
    Column[_Line]("copy_in_us", lambda line: line.row.parts.copy_in_us, terminal=False),
    Column[_Line]("copy_out_us", lambda line: line.row.parts.copy_out_us, terminal=False),
    Column[_Line]("hidden_fraction", lambda line: line.row.parts.hidden_fraction),
    Column[_Line]("allocate_us", lambda line: line.row.parts.allocate_us),
    Column[_Line]("with_allocation_us", lambda line: line.median_us + line.row.parts.allocate_us),
    Column[_Line]("distinct_segments", lambda line: line.row.parts.distinct_segments, terminal=False),
    Column[_Line]("host_bytes", lambda line: line.row.parts.host_bytes, terminal=False),
    Column[_Line]("error_over_bound", lambda line: line.row.row.trial.over_bound, terminal=False),
    Column[_Line]("accuracy", lambda line: line.row.row.trial.accuracy, terminal=False),
    Column[_Line]("kernel", lambda line: str(line.kernel.row.trial.config), terminal=False),
    Column[_Line]("source_hash", lambda line: line.row.row.trial.source_hash, terminal=False),
)


def show_end_to_end(results: Sequence[EndToEndResult], style: str | None) -> None:
    """Every plan as JSON or CSV; on the terminal, for each kind of memory, the uncut batch and the fastest plan."""
    for result in results:
        click.echo(_summary(result), err=True)
    show([line for result in results for line in _lines(result, every=style is not None)], _COLUMNS, style)


def _lines(result: EndToEndResult, *, every: bool) -> list[_Line]:
    if result.kernel is None:
        return []
    lines = [_Line(result, result.kernel, row) for row in result.rows]
    if every:
        return lines
    kept: list[_Line] = []
    for pinned in ("no", "yes"):
        group = [line for line in lines if line.value("pinned") == pinned]
        uncut = [line for line in group if line.value("segments") == 1]
        kept += uncut[:1] + [line for line in group[:1] if line not in uncut]
    return kept


def _summary(result: EndToEndResult) -> str:
    if result.kernel is None:
        return f"{result.name}: no correct kernel to time end to end"
    failures = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.failures.items()))
    return (
        f"{result.name}: {len(result.rows)} ways end to end, {failures or 'no failures'}; "
        f"kernel {result.kernel.row.trial.config.template}, {result.kernel.median_us:.1f} us by itself"
    )
