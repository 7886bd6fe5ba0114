"""Convolutions that also compute the mean and variance of their outputs, and norms to which these are given."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from tests.long_run import long_run
from tests.problems import PROBLEMS, STATISTICS_PROBLEMS

from .shipped_families import default_of, refuses_changed, verify

NAME = "conv_statistics_implicit_gemm_sm90"
BASE: dict[str, int | str] = {"tile_m": 64, "schedule": "pingpong", "folded": 1, "epilogue_subtiles": 1}
STRIPS: dict[str, int | str] = {**BASE, "window_rows": 7, "tile_n": 56, "epilogue_subtiles": 1}
"""Two strips of eight columns, each with seven rows and with one."""
ROWS: dict[str, int | str] = {**BASE, "window_rows": 7, "tile_n": 64, "tile_m": 128}
"""Rows of eight outputs and a column of padding."""
PIXELS: dict[str, int | str] = {**BASE, "window_rows": 0, "tile_n": 128, "schedule": "cooperative"}
"""Tiles whose pixels two warpgroups share."""


@pytest.mark.cxx
@pytest.mark.parametrize(("label", "values"), [("rows", ROWS), *long_run(("same", STRIPS), ("pointwise", PIXELS))])
def test_statistics_of_outputs(label: str, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, STATISTICS_PROBLEMS[label], values, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("label", "values", "change"),
    [
        ("same", STRIPS, ("row + pixel / 8 < P", "true")),
        *long_run(
            ("rows", ROWS, ("pixel % PITCH < Q", "true")),
            ("pointwise", PIXELS, ("slice < STATISTICS_SLICES;", "slice < STATISTICS_SLICES - 1;")),
        ),
        (
            "pointwise",
            PIXELS,
            ("mean[image * K + channel] = sums.shift + shifted;", "mean[image * K + channel] = square;"),
        ),
    ],
)
def test_missing_additional_and_swapped_numbers_are_found(
    label: str, values: dict[str, int | str], change: tuple[str, str], host: DeviceEvaluator
) -> None:
    assert refuses_changed(NAME, STATISTICS_PROBLEMS[label], values, change, host)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "change",
    [
        ("+ shifted * shifted", ""),
        ("means[channel / GROUP * GROUP]", "means[channel]"),
    ],
)
def test_a_group_needs_the_distances_of_its_channels_means(change: tuple[str, str], host: DeviceEvaluator) -> None:
    problem = PROBLEMS["norm_apply 2x150x60/12 f32 standard weight_bias_silu"]
    default = default_of("norm_apply_norm_groups", problem)
    assert default is not None
    assert refuses_changed("norm_apply_norm_groups", problem, default.params, change, host)
