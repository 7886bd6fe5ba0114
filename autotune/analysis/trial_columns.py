"""store -> columns: what an answer says of each trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.analysis.facts import Facts
from autotune.analysis.rooflines import TrialWithRoofline
from autotune.columns import Column, Items

if TYPE_CHECKING:
    from autotune.store import SpaceTrial, TrialRow


def registers(row: TrialRow | SpaceTrial) -> int | None:
    """None where no compiler reported them, as on the host."""
    return row.trial.resources.registers or None


def spill_bytes(row: TrialRow | SpaceTrial) -> int | None:
    return row.trial.resources.spill_bytes if row.trial.resources.registers else None


def blocks(found: Facts) -> int | None:
    return found.residency.blocks if found.residency else None


def warps(found: Facts) -> int | None:
    return found.residency.warps if found.residency else None


def limits(found: Facts) -> Items | None:
    """What allows no further block on a multiprocessor, such as `registers and warps`."""
    return Items(tuple(found.residency.limits), " and ") if found.residency else None


TRIAL_COLUMNS = (
    Column[TrialWithRoofline]("layer", lambda trial: trial.row.name),
    Column[TrialWithRoofline]("number", lambda trial: trial.row.trial.number),
    Column[TrialWithRoofline]("device", lambda trial: trial.row.device.name, terminal=False),
    Column[TrialWithRoofline]("template", lambda trial: trial.row.trial.config.template, terminal=False),
    Column[TrialWithRoofline]("config", lambda trial: trial.row.trial.config, below=True),
    Column[TrialWithRoofline]("accuracy", lambda trial: trial.row.trial.accuracy, terminal=False),
    Column[TrialWithRoofline]("outcome", lambda trial: trial.row.trial.outcome.value),
    Column[TrialWithRoofline]("reason", lambda trial: trial.row.trial.reason),
    Column[TrialWithRoofline]("median_us", lambda trial: trial.row.median_us),
    Column[TrialWithRoofline]("gflops", lambda trial: trial.row.gflops),
    Column[TrialWithRoofline]("gb_per_s", lambda trial: trial.facts.gb_per_s, terminal=False),
    Column[TrialWithRoofline]("floor_fraction", lambda trial: trial.facts.floor_fraction, terminal=False),
    Column[TrialWithRoofline]("limiter", lambda trial: trial.facts.limiter, terminal=False),
    Column[TrialWithRoofline]("registers", lambda trial: registers(trial.row)),
    Column[TrialWithRoofline]("spill_bytes", lambda trial: spill_bytes(trial.row), terminal=False),
    Column[TrialWithRoofline](
        "smem_bytes", lambda trial: trial.row.trial.smem_bytes if trial.row.trial.compiled else None, terminal=False
    ),
    Column[TrialWithRoofline]("blocks_per_sm", lambda trial: blocks(trial.facts), terminal=False),
    Column[TrialWithRoofline]("warps_per_sm", lambda trial: warps(trial.facts), terminal=False),
    Column[TrialWithRoofline]("occupancy", lambda trial: trial.row.trial.occupancy, terminal=False),
    Column[TrialWithRoofline]("occupancy_limits", lambda trial: limits(trial.facts), terminal=False),
    Column[TrialWithRoofline]("error_over_bound", lambda trial: trial.row.trial.over_bound, terminal=False),
    Column[TrialWithRoofline]("compile_us", lambda trial: trial.row.trial.phases.compile_us, terminal=False),
    Column[TrialWithRoofline]("verify_us", lambda trial: trial.row.trial.phases.verify_us, terminal=False),
    Column[TrialWithRoofline]("measure_us", lambda trial: trial.row.trial.phases.measure_us, terminal=False),
    Column[TrialWithRoofline]("message", lambda trial: trial.row.trial.message, below=True),
    Column[TrialWithRoofline]("source_hash", lambda trial: trial.row.trial.source_hash, terminal=False),
    Column[TrialWithRoofline]("generation", lambda trial: trial.row.generation, terminal=False),
    Column[TrialWithRoofline](
        "problem", lambda trial: None if trial.row.problem is None else str(trial.row.problem), terminal=False
    ),
    Column[TrialWithRoofline]("date", lambda trial: trial.row.ended_at, terminal=False),
    Column[TrialWithRoofline]("proposed_by", lambda trial: trial.row.proposed_by, terminal=False),
    Column[TrialWithRoofline](
        "origin",
        lambda trial: trial.row.origin,
        text=lambda trial: None if trial.row.origin == "measured" else trial.row.origin,
    ),
)
ROOFLINE_KEYS = frozenset(
    {"gb_per_s", "floor_fraction", "limiter", "blocks_per_sm", "warps_per_sm", "occupancy_limits"}
)
"""of columns that are empty where a trial's device is not known to be calibrated"""
