"""best -> rooflines: best kernels and trials with the limits of their devices."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.analysis.facts import Facts, facts

if TYPE_CHECKING:
    from autotune.store import BestRow, Store, TrialRow


@dataclass(frozen=True, slots=True)
class BestWithRoofline:
    """A best row with the facts about its kernel."""

    best: BestRow
    facts: Facts

    @property
    def floor_us(self) -> float | None:
        """The floor; None if the device was not calibrated."""
        return self.facts.floor.us if self.facts.floor else None


def with_roofline(store: Store, row: BestRow) -> BestWithRoofline:
    """Add the facts about a best row's kernel, as far as the device was calibrated."""
    return BestWithRoofline(row, _facts(row.row, row.median_us, store.rates.best(row.row.device)))


def best_per_class(rows: Iterable[BestRow]) -> list[BestRow]:
    """Without non-deterministic kernels that a deterministic one of the same layer, device and class beats."""
    rows = list(rows)
    steady = {_class_of(row): row.median_us for row in rows if row.row.trial.deterministic}
    return [row for row in rows if row.row.trial.deterministic or row.median_us < steady.get(_class_of(row), math.inf)]


def _class_of(found: BestRow) -> tuple[Hashable, ...]:
    row = found.row
    return (found.layer.problem, row.device.identity, row.trial.accuracy, row.measurement_mode)


def _facts(row: TrialRow, median_us: float | None, rates: Mapping[str, float]) -> Facts:
    trial = row.trial
    return facts(row.device, row.problem, trial.accuracy, row.stages, trial.resources, median_us, rates, row.flops)
