"""store -> columns: the columns of an answer about trials."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from autotune.columns import Cells, Column, Items, key_column

if TYPE_CHECKING:
    from autotune.analysis.facts import Facts
    from autotune.store import TrialRow


def layer_name(row: Cells) -> str:
    """`study.layer`; the layer is empty if its study has no name for it any more."""
    return f"{row['study']}.{row['layer'] or ''}"


def registers(row: TrialRow) -> int | None:
    """None if no compiler reported them, as on the host."""
    return row.trial.resources.registers or None


def spill_bytes(row: TrialRow) -> int | None:
    return row.trial.resources.spill_bytes if row.trial.resources.registers else None


def blocks(found: Facts) -> int | None:
    return found.residency.blocks if found.residency else None


def warps(found: Facts) -> int | None:
    return found.residency.warps if found.residency else None


def limits(found: Facts) -> Items | None:
    """What prevents another block on a multiprocessor, such as `registers and warps`."""
    return joined(found.residency.limits if found.residency else None)


def joined(words: tuple[str, ...] | None) -> Items | None:
    """Several words in one cell."""
    return None if words is None else Items(words, " and ")


TRIAL_COLUMNS = (
    key_column("layer"),
    key_column("number"),
    key_column("device", terminal=False),
    key_column("template", terminal=False),
    key_column("config", below=True),
    key_column("accuracy", terminal=False),
    key_column("outcome"),
    key_column("reason"),
    key_column("median_us"),
    key_column("gflops"),
    key_column("gb_per_s", terminal=False),
    key_column("floor_fraction", terminal=False),
    key_column("limiter", terminal=False),
    key_column("registers"),
    key_column("spill_bytes", terminal=False),
    key_column("smem_bytes", terminal=False),
    key_column("blocks_per_sm", terminal=False),
    key_column("warps_per_sm", terminal=False),
    key_column("occupancy", terminal=False),
    Column[Cells]("occupancy_limits", lambda trial: joined(trial["occupancy_limits"]), terminal=False),
    key_column("error_over_bound", terminal=False),
    key_column("compile_us", terminal=False),
    key_column("verify_us", terminal=False),
    key_column("measure_us", terminal=False),
    key_column("message", below=True),
    key_column("source_hash", terminal=False),
    key_column("generation", terminal=False),
    key_column("problem", terminal=False),
    key_column("date", terminal=False),
    key_column("proposed_by", terminal=False),
    Column[Cells](
        "origin",
        itemgetter("origin"),
        text=lambda trial: None if trial["origin"] == "measured" else trial["origin"],
    ),
)
ROOFLINE_KEYS = frozenset(
    {"gb_per_s", "floor_fraction", "limiter", "blocks_per_sm", "warps_per_sm", "occupancy_limits"}
)
"""columns that are empty if a trial's device is not known to be calibrated"""
