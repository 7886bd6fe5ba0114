"""Paths of `mma_toeplitz` that awkward problems do not reach: long filter rows, runs of several channels, odd rows."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import verify

BASE: dict[str, int | str] = {
    "thread_p": 3,
    "row_tiles": 1,
    "tiles": 1,
    "epilogue_stages": 2,
    "stages": 2,
    "min_blocks": 1,
}
LONG = Conv2dProblem(5, 1, 10, 20, 6, 3, 9, dtype="f16", epilogue="bias")
"""Two units of taps per filter row, the second mostly padding; row tiles of 16-byte runs; a tile with two of four
channels.
"""
ODD = Conv2dProblem(5, 1, 9, 13, 3, 2, 4)
"""Rows of an odd number of floats, filter rows of an even number of columns."""
FOUR = Conv2dProblem(4, 1, 7, 8, 8, 3, 3, dtype="bf16")
"""30 outputs per channel: only four channels together end at a multiple of 16 bytes."""
TWO = Conv2dProblem(4, 1, 6, 8, 6, 1, 3, dtype="f16", epilogue="bias_relu")
"""Runs of two channels, the last of which is alone in its tile."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (LONG, {"row_tiles": 2}),
        (ODD, {"thread_p": 4, "stages": 3}),
        *long_run(
            (FOUR, {"tiles": 2, "thread_p": 2}),
            (TWO, {"tiles": 1, "thread_p": 4}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_toeplitz", problem, {**BASE, **values}, checked)
