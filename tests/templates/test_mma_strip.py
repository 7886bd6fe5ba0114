"""Paths of `mma_strip` that random configs seldom reach: adjacent images whose channels are split unevenly, and rows
that begin and end within 16 bytes.
"""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import verify

BASE: dict[str, int | str] = {
    "precision": "tf32",
    "mma": "warp",
    "mma_p": 1,
    "thread_q": 3,
    "warp_tiles_k": 3,
    "warps_k": 1,
    "row_tiles": 1,
    "images": 2,
    "tiles_per_warp": 1,
    "channel_slices": 2,
    "stages": 2,
    "register_prefetch": 0,
    "filters": "shared",
    "store": "vector",
    "consumer_groups": 1,
    "producer_warps": 1,
    "min_blocks": 1,
}
FLOAT = Conv2dProblem(3, 7, 14, 14, 21, 3, 3, pad_h=1, pad_w=1, epilogue="bias_relu")
HALF = Conv2dProblem(3, 5, 14, 14, 21, 3, 3, pad_h=1, pad_w=1, dtype="f16", epilogue="bias_relu")
ODD = Conv2dProblem(3, 3, 9, 11, 21, 2, 4, stride_h=2)
"""Neither a row, a plane nor an image is a multiple of 16 bytes."""
ODD_HALF = Conv2dProblem(3, 3, 9, 17, 21, 2, 5, stride_w=2, dilation_w=2, dtype="f16")
SPACED_HALF = Conv2dProblem(2, 9, 9, 17, 21, 2, 3, stride_w=2, dilation_w=2, dtype="f16")
"""Some columns of a strip of inputs belong to no product."""
LONG = Conv2dProblem(1, 3, 10, 40, 9, 2, 11)
"""More filter columns than tensor cores add before 3xTF32 is promoted."""
UNEVEN = Conv2dProblem(2, 3, 58, 9, 12, 3, 3, stride_h=2, pad_h=1, epilogue="bias")
UNEVEN_HALF = Conv2dProblem(2, 2, 31, 9, 6, 3, 3, dtype="f16")
"""29 output rows: the last of two row tiles is shorter, and the last products' second rows lie beyond it."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FLOAT, {"precision": "3xtf32", "images": 1, "channel_slices": 4, "store": "bulk"}),
        (
            HALF,
            {
                "precision": "stored",
                "consumer_groups": 3,
                "images": 1,
                "mma": "warpgroup",
                "row_tiles": 2,
                "store": "bulk",
            },
        ),
        *long_run(
            (FLOAT, {"precision": "3xtf32", "images": 1, "mma": "warpgroup", "register_prefetch": 1, "row_tiles": 2}),
            (LONG, {"precision": "3xtf32", "warp_tiles_k": 2, "images": 1, "channel_slices": 1, "filters": "global"}),
            (FLOAT, {}),
            (UNEVEN, {"images": 1, "mma_p": 2, "row_tiles": 2, "channel_slices": 1}),
            (HALF, {"precision": "stored"}),
            (HALF, {"precision": "stored", "images": 1, "min_blocks": 2, "channel_slices": 1, "store": "bulk"}),
            (ODD, {"images": 1, "stages": 1}),
            (ODD, {"images": 1, "channel_slices": 3, "mma": "warpgroup"}),
            (FLOAT, {"images": 1, "channel_slices": 1, "mma": "warpgroup", "register_prefetch": 1}),
            (FLOAT, {"images": 1, "mma": "warpgroup", "register_prefetch": 2}),
            (
                SPACED_HALF,
                {"precision": "stored", "images": 1, "channel_slices": 1, "mma": "warpgroup", "register_prefetch": 2},
            ),
            (ODD_HALF, {"precision": "stored", "images": 1, "stages": 1}),
            (ODD_HALF, {"precision": "stored", "images": 1, "mma": "warpgroup"}),
            (FLOAT, {"consumer_groups": 2, "images": 1, "producer_warps": 4}),
            (
                UNEVEN,
                {"images": 1, "mma_p": 2, "row_tiles": 2, "channel_slices": 1, "mma": "warpgroup", "store": "bulk"},
            ),
            (UNEVEN_HALF, {"precision": "stored", "mma_p": 4, "channel_slices": 1, "thread_q": 2}),
            (
                UNEVEN_HALF,
                {"precision": "stored", "images": 1, "mma_p": 4, "row_tiles": 2, "channel_slices": 1, "store": "bulk"},
            ),
            (
                HALF,
                {
                    "precision": "stored",
                    "images": 1,
                    "channel_slices": 1,
                    "mma": "warpgroup",
                    "mma_p": 2,
                    "warp_tiles_k": 6,
                    "thread_q": 2,
                },
            ),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_strip", problem, {**BASE, **values}, checked)
