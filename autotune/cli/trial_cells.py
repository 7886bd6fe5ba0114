"""Very many trials to the cells of `TRIAL_COLUMNS`: what many of them share is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from autotune.analysis.facts import Bounds, bounds, facts_of, held_on
from autotune.analysis.rooflines import DeviceRates
from autotune.cli.cells import Cell, Items
from autotune.measurement.occupancy import Residency
from autotune.trial import Config, Outcome, Resources

if TYPE_CHECKING:
    from autotune.store import OwnValues, Store, Streamed, TrialRow

_MOST_KEPT = 4096  # kinds of trials


class TrialCells:
    """Makes the cells of trials, those that columns would make of their records."""

    def __init__(
        self,
        store: Store,
        admitted: Callable[[TrialRow], bool],
        cells_of: Callable[[TrialRow], list[Cell]],
        note: Callable[[str, str, float | None], None],
    ) -> None:
        """`cells_of` makes those of a record; `note` is told device, layer and floor_fraction of each admitted one."""
        self._rates = DeviceRates(store)
        self._admitted, self._cells_of, self._note = admitted, cells_of, note
        self._kinds: dict[int, _Kind] = {}

    def of(self, trials: Iterable[Streamed]) -> Iterator[list[Cell]]:
        """The cells of those that are admitted."""
        for row, own in trials:
            if own is None:
                if self._admitted(row):
                    yield self._cells_of(row)
                continue
            kind = self._kinds.get(row.id)
            if kind is None or kind.row is not row:
                if len(self._kinds) > _MOST_KEPT:
                    self._kinds.clear()
                kind = self._kinds[row.id] = _Kind(row, self._rates, admitted=self._admitted(row))
            if kind.admitted:
                yield self._cells(kind, own)

    def _cells(self, kind: _Kind, own: OwnValues) -> list[Cell]:
        (
            number, config, outcome, reason, message, source_hash, registers, spill_bytes, static_smem_bytes,
            smem_bytes, occupancy, over_bound, compile_us, verify_us, measure_us, median_us, ended_at,
        ) = own  # fmt: skip
        held, blocks, warps, limits = kind.held(registers or 0, static_smem_bytes or 0)
        gflops = gb_per_s = fraction = limiter = None
        if median_us is not None:
            found = facts_of(held, kind.bounds(), median_us)
            gb_per_s, fraction, limiter = found.gb_per_s, found.floor_fraction, found.limiter
            gflops = kind.flops / median_us / 1e3
        self._note(kind.device, kind.layer, fraction)
        return [
            kind.layer, number, kind.device, kind.template, Config(kind.template, tuple(config.items())),
            kind.accuracy, outcome, reason, median_us, gflops, gb_per_s, fraction, limiter,
            registers or None, (spill_bytes or 0) if registers else None,
            smem_bytes if source_hash is not None and outcome != Outcome.RUNNING else None,
            blocks, warps, occupancy, limits, over_bound, compile_us, verify_us, measure_us, message, source_hash,
            kind.generation, kind.problem, ended_at, kind.proposed_by, kind.origin,
        ]  # fmt: skip


class _Kind:
    """What trials share that differ in their `OwnValues` alone."""

    def __init__(self, row: TrialRow, rates: DeviceRates, *, admitted: bool) -> None:
        self.row, self.admitted = row, admitted
        self.layer, self.device = row.name, row.device.name
        self.template, self.accuracy = row.trial.config.template, row.trial.accuracy
        self.generation, self.problem = row.generation, str(row.problem)
        self.proposed_by, self.origin = row.proposed_by, row.origin
        self.flops = row.problem.flops
        self._rates = rates
        self._bounds: Bounds | None = None
        self._held: dict[tuple[int, int], tuple[Residency | None, Cell, Cell, Cell]] = {}

    def bounds(self) -> Bounds:
        if self._bounds is None:
            row = self.row
            self._bounds = bounds(row.device, row.problem, self.accuracy, self._rates.of(row), row.flops)
        return self._bounds

    def held(self, registers: int, static_smem_bytes: int) -> tuple[Residency | None, Cell, Cell, Cell]:
        """What a multiprocessor holds of a kernel, and its cells."""
        found = self._held.get((registers, static_smem_bytes))
        if found is None:
            resources = Resources(registers, static_smem_bytes=static_smem_bytes)
            held = held_on(self.row.device, self.row.stages, resources)
            if held is None:
                found = None, None, None, None
            else:
                found = held, held.blocks, held.warps, Items(tuple(held.limits), " and ")
            if len(self._held) > _MOST_KEPT:
                self._held.clear()
            self._held[registers, static_smem_bytes] = found
        return found
