"""Paths of `mma_gemm` that random configs seldom reach: odd channels, partial slices, copied rows, several images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import verify

BASE: dict[str, int | str] = {
    "mma": "warp",
    "warp_p": 3,
    "warp_tiles_k": 1,
    "warps_k": 1,
    "row_tiles": 1,
    "column_tiles": 1,
    "images": 1,
    "frames": 1,
    "contiguous_taps": "row",
    "channel_slices": 1,
    "stages": 2,
    "register_prefetch": 0,
    "filters": "resident",
    "min_blocks": 1,
    "arithmetic": "mma",
}
ODD = Conv2dProblem(2, 3, 11, 9, 7, 4, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc", epilogue="bias_relu")
"""Eight copies of a row, two chunks of taps in one."""
TWELVE = Conv2dProblem(3, 12, 8, 11, 12, 3, 3, dtype="bf16", layout="nhwc", epilogue="bias")
"""Two copies of a row and a spare column; five chunks: one remains of every filter row, and one of their odd number."""
THREE = Conv2dProblem(2, 12, 14, 20, 22, 5, 5, dtype="f16", layout="nhwc", epilogue="bias")
"""Three tiles of output channels, so that four warps may multiply; four pairs of chunks per filter row."""
FOUR = Conv2dProblem(2, 12, 21, 13, 30, 3, 3, 2, 1, dtype="bf16", layout="nhwc")
"""Four tiles of output channels; rows that no output row needs, and a chunk that remains of every filter row."""
STRIDED = Conv2dProblem(3, 20, 13, 9, 8, 3, 3, 2, 1, 1, 1, 1, 2, dtype="f16", layout="nhwc")
"""Rows of input that no output row needs, dilated filter columns, channels whose last part is padded."""
ADDED = replace(TWELVE, epilogue="bias_add_relu")
"""A residual: a warp has an odd number of rows, and outputs beyond the last one are neither read nor stored."""
LARGE = Conv2dProblem(1, 8, 271, 253, 3, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc", epilogue="bias_add_silu")
"""An image that needs more than 28 row tiles and 4 column tiles."""

SINGLE = replace(ODD, dtype="f32", epilogue="bias_add_relu")
"""TF32: four copies of a row, rounded on their way through registers."""
SINGLE_FOUR = replace(FOUR, dtype="f32")
"""TF32 that is rounded as a warpgroup loads it, and whole chunks of channels."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SINGLE, {"row_tiles": 2}),
        (replace(SINGLE_FOUR, c=68, r=5, s=5, pad_h=1), {"contiguous_taps": "pixel", "arithmetic": "split"}),
        (SINGLE_FOUR, {"mma": "warpgroup", "warp_tiles_k": 4, "warp_p": 5, "contiguous_taps": "pixel"}),
        (ADDED, {"images": 2, "warp_tiles_k": 2}),
        (THREE, {"mma": "warpgroup", "warp_tiles_k": 3, "warp_p": 4, "register_prefetch": 1}),
        *long_run(
            (ODD, {"row_tiles": 2, "stages": 1, "min_blocks": 2}),
            (LARGE, {"row_tiles": 56, "column_tiles": 8, "contiguous_taps": "pixel"}),
            (TWELVE, {"images": 2, "warp_tiles_k": 2}),  # as ADDED, without a residual
            (FOUR, {"mma": "warpgroup", "warp_tiles_k": 4, "warp_p": 5}),
            (
                STRIDED,
                {
                    "warp_p": 7,
                    "contiguous_taps": "pixel",
                    "images": 2,
                    "channel_slices": 3,
                    "filters": "staged",
                    "stages": 3,
                },
            ),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_gemm", problem, {**BASE, **values}, checked)
