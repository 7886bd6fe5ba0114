"""best -> rooflines: best kernels and trials set against what their devices can do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.analysis.facts import Facts, facts
from autotune.trial import END_TO_END

if TYPE_CHECKING:
    from autotune.store import BestRow, SpaceTrial, Store, TrialRow


@dataclass(frozen=True, slots=True)
class BestWithRoofline:
    """A best row set against what its device can do."""

    best: BestRow
    facts: Facts

    @property
    def floor_us(self) -> float | None:
        """What no kernel can beat; None when the device was not calibrated."""
        return self.facts.floor.us if self.facts.floor else None


@dataclass(frozen=True, slots=True)
class TrialWithRoofline:
    """A trial set against what its device can do."""

    row: TrialRow | SpaceTrial
    facts: Facts


NO_FACTS = Facts(None, None, None, None, None)
"""Of a kernel on a device that is known by its name alone"""


def with_roofline(store: Store, row: BestRow) -> BestWithRoofline:
    """Set a best row against what its device can do, as far as that was calibrated."""
    return BestWithRoofline(row, _facts(row.row, row.median_us, store.rates.best(row.row.device)))


def undominated(rows: Iterable[BestRow]) -> list[BestRow]:
    """Without non-deterministic kernels that a deterministic one of the same layer, device and class beats."""
    rows = list(rows)
    steady = {_class_of(row): row.median_us for row in rows if row.row.trial.deterministic}
    return [row for row in rows if row.row.trial.deterministic or row.median_us < steady.get(_class_of(row), math.inf)]


def _class_of(found: BestRow) -> tuple[str, str, str, str]:
    return (found.name, found.row.device.name, found.row.trial.accuracy, found.row.measurement_mode)


def with_rooflines(store: Store, rows: Iterable[TrialRow]) -> Iterator[TrialWithRoofline]:
    """Set trials against what their devices can do, as far as that was calibrated."""
    rates = DeviceRates(store)
    for row in rows:
        yield TrialWithRoofline(row, _facts(row, row.median_us, rates.of(row)))


class DeviceRates:
    """The calibrated rates of trials' devices, each device's read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rates: dict[tuple[str, str, int, int, int], Mapping[str, float]] = {}

    def of(self, row: TrialRow) -> Mapping[str, float]:
        """Those that bound a trial."""
        if row.measurement_mode == END_TO_END:  # a layer waits for copies: the floor of its kernel says nothing of it
            return {}
        identity = row.device.identity
        if identity not in self._rates:
            self._rates[identity] = self._store.rates.best(row.device)
        return self._rates[identity]


def _facts(row: TrialRow, median_us: float | None, rates: Mapping[str, float]) -> Facts:
    trial = row.trial
    return facts(row.device, row.problem, trial.accuracy, row.stages, trial.resources, median_us, rates, row.flops)
