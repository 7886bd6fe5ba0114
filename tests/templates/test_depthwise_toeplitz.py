"""Tiles of `depthwise_toeplitz`, whose edges lie within images, rows and channels, and faults planted in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import every, long_run

from .shipped_families import images_with_infinities, refuses_changed, verify
from .toeplitz_layers import ODD

NAME = "depthwise_toeplitz"
Values = dict[str, int | str]
BASE: Values = {"tile_c": 16, "thread_p": 4, "groups_p": 2, "images": 1, "warps": 4, "batch": 2}
IMAGES = replace(ODD, c=16, k=16, groups=16, h=7, w=7, r=5, s=5, pad_h=2, pad_w=2, dtype="bf16", epilogue="none")
"""Two images a tile, of which the last has one."""
WIDE = replace(ODD, n=1, c=8, k=8, groups=8, h=9, w=100, r=3, s=9, pad_h=0, pad_w=1, epilogue="bias")
"""Two MMAs side by side, of the widest filter."""
APART = replace(ODD, c=8, k=8, groups=8, h=12, r=3, s=3, pad_h=5, pad_w=4, dilation_h=3, dilation_w=4)
"""Outputs that see padding alone, taps of which pairs of columns have one."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (ODD, {}),
        (IMAGES, {"images": 2, "thread_p": 7, "groups_p": 1, "warps": 8, "batch": 1}),
        *long_run(
            (WIDE, {"tile_c": 8, "thread_p": 2, "groups_p": 2}),
            (APART, {"tile_c": 8, "groups_p": 4, "warps": 2}),
            (ODD, {"tile_c": 16, "thread_p": 8}),
            (ODD, {"tile_c": 8, "thread_p": 5, "groups_p": 1, "batch": 1}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: Values, checked: DeviceEvaluator) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


FAULTS: dict[str, tuple[str, str]] = {
    "a pair of columns loses its second tap": ("tap >= -1 &&", "tap >= 0 &&"),
    "rows below a tile's are loaded": ("min(H - row, ROWS - above)", "H - row"),
    "a warp's outputs leave before another's are there": ("    __syncthreads();\n    store", "    store"),
    "taps lie a column too far": (" - SHIFT", ""),
    "rows below the image are stored": ("row + of_row >= P", "false"),
    "rows of padding are loaded": ("first_row - PAD_H + above", "first_row - PAD_H"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("fault", every(6, FAULTS))
def test_fault_is_found(fault: str, checked: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, ODD, BASE, FAULTS[fault], checked)


@pytest.mark.cxx
def test_an_infinity_stays_in_its_image() -> None:
    problem = replace(IMAGES, dtype="f16")
    assert images_with_infinities(NAME, problem, {**BASE, "images": 2, "thread_p": 7, "groups_p": 1, "batch": 1}) == {1}
