"""Rows of the view `results` -> rows of the commands `trials` and `show`: each trial with its device's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from autotune.analysis.rooflines import Facts, facts
from autotune.columns import Cells, Items, field_cells
from autotune.problem import Problem
from autotune.store import launched, stored_config, stored_problem
from autotune.trial import END_TO_END, Outcome, Resources

if TYPE_CHECKING:
    from autotune.analysis.rooflines import BestWithRoofline
    from autotune.store import Store, TrialRow


def layer_name(row: Cells) -> str:
    """Return `study.layer`. If the study no longer has the layer, the layer part is empty."""
    return f"{row['study']}.{row['layer'] or ''}"


def problem_of_row(row: Mapping[str, Any]) -> Problem:
    """Return the problem of a row that describes a layer."""
    return stored_problem(row["operation"], row["problem"], row["declaration"])


def trial_rows(store: Store, rows: Iterable[Mapping[str, Any]]) -> Iterator[Cells]:
    """Yield the rows of `Store.results`, with additional cells computed from the columns."""
    devices = store.devices.by_id()
    rates = {device_id: store.rates.best(device) for device_id, device in devices.items()}
    for row in rows:
        problem, registers = problem_of_row(row), row["registers"] or None
        stages, flops = launched(row["launches"])
        end_to_end = row["measurement_mode"] == END_TO_END  # includes copies, so a kernel's floor does not apply
        found = facts(
            *(devices[row["device_id"]], problem, row["accuracy"], stages),
            Resources(registers or 0, static_smem_bytes=row["static_smem_bytes"] or 0),
            row["median_us"],
            {} if end_to_end else rates[row["device_id"]],
            flops,
        )
        yield {
            **row,
            "layer": layer_name(row),
            "config": stored_config(row["template"], row["config"]),
            "problem": str(problem),
            "deterministic": bool(row["deterministic"]),
            "reused": bool(row["reused"]),
            "registers": registers,
            "spill_bytes": row["spill_bytes"] if registers else None,
            "smem_bytes": row["smem_bytes"] if row["source_hash"] and row["outcome"] != Outcome.RUNNING else None,
            "started": datetime.fromisoformat(row["started_at"]),
            "date": None if row["ended_at"] is None else datetime.fromisoformat(row["ended_at"]),
            **_limits(found),
        }


def _limits(found: Facts) -> Cells:
    """Return the cells that depend on the device's limits."""
    residency = found.residency
    return {
        "gb_per_s": found.gb_per_s,
        "floor_fraction": found.floor_fraction,
        "limiter": found.limiter,
        "blocks_per_sm": residency and residency.blocks,
        "warps_per_sm": residency and residency.warps,
        "occupancy_limits": residency and Items(residency.limits, " and "),
    }


def kernel_cells(row: TrialRow) -> dict[str, Any]:
    """Return a stored trial's cells, under the same keys as in `trial_rows`."""
    trial, resources = row.trial, row.trial.resources
    return {
        **field_cells(resources, trial.phases, trial, row),
        "layer": row.name,
        "problem": str(row.problem),
        "device": row.device.name,
        "template": trial.config.template,
        "driver": row.environment.driver,
        "toolkit": row.environment.toolkit,
        "trial": trial.number,
        "registers": resources.registers or None,
        "spill_bytes": resources.spill_bytes if resources.registers else None,
        "error_over_bound": trial.over_bound,
        "date": row.ended_at,
    }


def best_cells(kernel: BestWithRoofline) -> Cells:
    """Return a best kernel's cells, with the deciding time, under the same keys as in `trial_rows`."""
    best, found = kernel.best, kernel.facts
    return {
        **kernel_cells(best.row),
        **{name: getattr(best.timing, name) for name in ("median_us", "q1_us", "q3_us")},
        **_limits(found),
        "layer": best.name,
        "problem": str(best.layer.problem),
        "match": best.match,
        "samples": len(best.timing.samples_us),
        "gflops": best.gflops,
        "floor_us": kernel.floor_us,
        "ffma_us": found.floor and found.floor.ffma_us,
        "decided_by": best.decided_by,
    }
