"""The best kernels of a recorded database, as stored and as their families render them now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.analysis.rerender import render_current
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.store import BestRow, Store

RECORDED = tuple(Path("studies/recorded", f"{name}.db") for name in ("networks", "h100", "h200"))


@dataclass(frozen=True, slots=True)
class Winner:
    """A recorded winner whose source text is stored."""

    row: BestRow
    stored: KernelSource
    now: KernelSource | str
    """why its family renders nothing"""

    @property
    def name(self) -> str:
        """Layer, accuracy class and determinism; each combination has a winner."""
        trial = self.row.row.trial
        return f"{self.row.name} {trial.accuracy}{'' if self.stored.deterministic else ' nondeterministic'}"

    @property
    def template(self) -> str:
        """Its family."""
        return self.stored.config.template


def winners(store: Store, families: Mapping[str, KernelTemplate], study: str | None = None) -> Iterator[Winner]:
    """The best kernels for GPUs in a database, or in one of its studies, whose source texts are stored."""
    for row in store.best.list(study, kind="cuda"):
        stored = store.sources.get(row.row.trial.source_hash or "")
        if stored is not None:
            yield Winner(row, stored, render_current(row.row, families))
