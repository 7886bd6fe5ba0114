"""Paths of `mma_strip` that a random config seldom takes: images side by side whose channels come in uneven parts."""

from __future__ import annotations

import pytest

from autotune.evaluate import DeviceEvaluator
from autotune.problem import Conv2dProblem

from .shipped_families import verify

BASE: dict[str, int | str] = {
    "precision": "tf32",
    "columns": 5,
    "map_tiles": 2,
    "block_k": 1,
    "bands": 1,
    "images": 2,
    "rounds": 1,
    "cuts": 2,
    "stages": 2,
    "filters": "shared",
    "store": "vector",
    "min_blocks": 1,
}
FLOAT = Conv2dProblem(3, 7, 14, 14, 16, 3, 3, pad_h=1, pad_w=1, epilogue="bias_relu")
HALF = Conv2dProblem(3, 5, 14, 14, 16, 3, 3, pad_h=1, pad_w=1, dtype="f16", epilogue="bias_relu")
LONG = Conv2dProblem(1, 3, 10, 40, 9, 2, 11)
"""More filter columns than tensor cores add up before 3xTF32 is promoted."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FLOAT, {}),
        (FLOAT, {"precision": "3xtf32", "cuts": 4, "stages": 3, "store": "bulk"}),
        (HALF, {"precision": "stored"}),
        (HALF, {"precision": "stored", "stages": 1, "min_blocks": 2, "cuts": 1, "store": "bulk"}),
        (LONG, {"precision": "3xtf32", "images": 1, "cuts": 1, "filters": "global", "store": "direct"}),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_strip", problem, {**BASE, **values}, checked)
