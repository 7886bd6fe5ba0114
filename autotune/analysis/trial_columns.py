"""store -> columns: what an answer says of each trial."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from autotune.analysis.facts import Facts
from autotune.columns import Column, Items

if TYPE_CHECKING:
    from autotune.analysis.trial_rows import TrialCells
    from autotune.store import TrialRow


def registers(row: TrialRow) -> int | None:
    """None where no compiler reported them, as on the host."""
    return row.trial.resources.registers or None


def spill_bytes(row: TrialRow) -> int | None:
    return row.trial.resources.spill_bytes if row.trial.resources.registers else None


def blocks(found: Facts) -> int | None:
    return found.residency.blocks if found.residency else None


def warps(found: Facts) -> int | None:
    return found.residency.warps if found.residency else None


def limits(found: Facts) -> Items | None:
    """What allows no further block on a multiprocessor, such as `registers and warps`."""
    return joined(found.residency.limits if found.residency else None)


def joined(words: tuple[str, ...] | None) -> Items | None:
    """Several words in one cell."""
    return None if words is None else Items(words, " and ")


def trial_column(key: str, *, terminal: bool = True, below: bool = False) -> Column[TrialCells]:
    """The column of a trial's cell of this key."""
    return Column(key, itemgetter(key), terminal=terminal, below=below)


TRIAL_COLUMNS = (
    trial_column("layer"),
    trial_column("number"),
    trial_column("device", terminal=False),
    trial_column("template", terminal=False),
    trial_column("config", below=True),
    trial_column("accuracy", terminal=False),
    trial_column("outcome"),
    trial_column("reason"),
    trial_column("median_us"),
    trial_column("gflops"),
    trial_column("gb_per_s", terminal=False),
    trial_column("floor_fraction", terminal=False),
    trial_column("limiter", terminal=False),
    trial_column("registers"),
    trial_column("spill_bytes", terminal=False),
    trial_column("smem_bytes", terminal=False),
    trial_column("blocks_per_sm", terminal=False),
    trial_column("warps_per_sm", terminal=False),
    trial_column("occupancy", terminal=False),
    Column["TrialCells"]("occupancy_limits", lambda trial: joined(trial["occupancy_limits"]), terminal=False),
    trial_column("error_over_bound", terminal=False),
    trial_column("compile_us", terminal=False),
    trial_column("verify_us", terminal=False),
    trial_column("measure_us", terminal=False),
    trial_column("message", below=True),
    trial_column("source_hash", terminal=False),
    trial_column("generation", terminal=False),
    trial_column("problem", terminal=False),
    trial_column("date", terminal=False),
    trial_column("proposed_by", terminal=False),
    Column["TrialCells"](
        "origin",
        itemgetter("origin"),
        text=lambda trial: None if trial["origin"] == "measured" else trial["origin"],
    ),
)
ROOFLINE_KEYS = frozenset(
    {"gb_per_s", "floor_fraction", "limiter", "blocks_per_sm", "warps_per_sm", "occupancy_limits"}
)
"""of columns that are empty where a trial's device is not known to be calibrated"""
