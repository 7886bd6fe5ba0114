"""store -> columns: the columns in tables of trials."""

from __future__ import annotations

from autotune.columns import Cells, Column, key_columns


def layer_name(row: Cells) -> str:
    """Return `study.layer`. If the study no longer has the layer, the layer part is empty."""
    return f"{row['study']}.{row['layer'] or ''}"


TRIAL_COLUMNS = (
    *key_columns("layer", "number"),
    *key_columns("device", "template", hidden=True),
    *key_columns("config", below=True),
    *key_columns("accuracy", hidden=True),
    *key_columns("outcome", "reason", "median_us", "gflops"),
    *key_columns("gb_per_s", "floor_fraction", "limiter", hidden=True),
    *key_columns("registers"),
    *key_columns("spill_bytes", "smem_bytes", "blocks_per_sm", "warps_per_sm", "occupancy", hidden=True),
    *key_columns("occupancy_limits", "error_over_bound", "compile_us", "verify_us", "measure_us", hidden=True),
    *key_columns("message", below=True),
    *key_columns("source_hash", "generation", "problem", "date", "proposed_by", hidden=True),
    Column("origin", text=lambda trial: None if trial["origin"] == "measured" else trial["origin"]),
)
