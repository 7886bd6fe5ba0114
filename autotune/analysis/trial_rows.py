"""Rows of the view `results` -> the rows of `trials` and `show`: each trial with the limits of its device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autotune.analysis.facts import Bounds, Facts, bounds, facts_of, held_on
from autotune.analysis.trial_columns import layer_name
from autotune.columns import Cells
from autotune.measurement.occupancy import Residency
from autotune.store import launched, stored_problem
from autotune.trial import END_TO_END, Config, Outcome, Resources

if TYPE_CHECKING:
    from autotune.analysis.rooflines import BestWithRoofline
    from autotune.store import Store, TrialRow

_Shape = tuple[str, str, str | None]  # the columns for `stored_problem`
_KEPT = 1 << 14  # kernels that share launches and resources


@lru_cache(_KEPT)
def problem_words(shape: _Shape) -> str:
    """A problem as text."""
    return str(stored_problem(*shape))


def config_cell(template: str, params: str) -> Config:
    """A config from its family's name and its parameters as JSON."""
    return Config(template, tuple(json.loads(params).items()))


def trial_rows(store: Store, rows: Iterable[Mapping[str, Any]]) -> Iterator[Cells]:
    """The rows of `Store.results`, with the columns that are computed from them."""
    devices = store.devices.by_id()
    rates = {device_id: store.rates.best(device) for device_id, device in devices.items()}

    @lru_cache(_KEPT)
    def held(device_id: int, launches: str | None, registers: int, static_smem_bytes: int) -> Residency | None:
        stages, _ = launched(launches)
        return held_on(devices[device_id], stages, Resources(registers, static_smem_bytes=static_smem_bytes))

    @lru_cache(_KEPT)
    def bound(device_id: int, shape: _Shape, accuracy: str, mode: str, launches: str | None) -> Bounds:
        known = {} if mode == END_TO_END else rates[device_id]  # it includes copies, so a kernel's floor does not apply
        _, flops = launched(launches)
        return bounds(devices[device_id], stored_problem(*shape), accuracy, known, flops)

    for row in rows:
        shape, launches, device_id = _shape(row), row["launches"], row["device_id"]
        registers, median_us = row["registers"] or None, row["median_us"]
        residency = held(device_id, launches, registers, row["static_smem_bytes"]) if shape and registers else None
        found = None
        if shape and median_us is not None:
            within = bound(device_id, shape, row["accuracy"], row["measurement_mode"], launches)
            found = facts_of(residency, within, median_us)
        yield {
            **row,
            "layer": layer_name(row),
            "config": config_cell(row["template"], row["config"]),
            "problem": problem_words(shape) if shape else None,
            "registers": registers,
            "spill_bytes": row["spill_bytes"] if registers else None,
            "smem_bytes": row["smem_bytes"] if row["source_hash"] and row["outcome"] != Outcome.RUNNING else None,
            "started": datetime.fromisoformat(row["started_at"]),
            "date": None if row["ended_at"] is None else datetime.fromisoformat(row["ended_at"]),
            **_limits(found, residency),
        }


def _limits(found: Facts | None, residency: Residency | None) -> Cells:
    """What the limits of the device say about a kernel."""
    return {
        "gb_per_s": found and found.gb_per_s,
        "floor_fraction": found and found.floor_fraction,
        "limiter": found and found.limiter,
        "blocks_per_sm": residency and residency.blocks,
        "warps_per_sm": residency and residency.warps,
        "occupancy_limits": residency and residency.limits,
    }


def _shape(row: Mapping[str, Any]) -> _Shape | None:
    """The columns of a problem; None for an imported space."""
    return None if row["operation"] is None else (row["operation"], row["problem"], row["declaration"])


def cells_of(row: TrialRow) -> Cells:
    """The same cells from a TrialRow, except those that depend on the device."""
    trial = row.trial
    parts = (trial.resources, trial.phases, trial, row)
    return {field.name: getattr(part, field.name) for part in parts for field in fields(part)} | {
        "layer": row.name,
        "device": row.device.name,
        "template": trial.config.template,
        "driver": row.environment.driver,
        "toolkit": row.environment.toolkit,
        "date": row.ended_at,
        "outcome": trial.outcome.value,
        "median_us": row.median_us,
        "gflops": row.gflops,
        "registers": trial.resources.registers or None,
        "spill_bytes": trial.resources.spill_bytes if trial.resources.registers else None,
        "smem_bytes": trial.smem_bytes if trial.compiled else None,
        "error_over_bound": trial.over_bound,
        "problem": str(row.problem),
    }


def best_cells(kernel: BestWithRoofline) -> Cells:
    """The cells of a best kernel: those of its trial, with the name, the layer and the time by which it is the best."""
    best, facts = kernel.best, kernel.facts
    return {
        **cells_of(best.row),
        **{name: getattr(best.timing, name) for name in ("median_us", "q1_us", "q3_us")},
        **_limits(facts, facts.residency),
        "layer": best.name,
        "problem": str(best.layer.problem),
        "match": best.match,
        "samples": len(best.timing.samples_us),
        "gflops": best.gflops,
        "floor_us": kernel.floor_us,
        "ffma_us": facts.floor and facts.floor.ffma_us,
        "decided_by": best.decided_by,
    }
