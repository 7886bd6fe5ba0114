"""Paths of `depthwise` that awkward problems do not reach: several planes per block, bands, odd runs, much padding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import parts_with_infinities, verify

BASE: dict[str, int | str] = {
    "inputs": "shared",
    "stores": "direct",
    "thread_p": 4,
    "thread_q": 1,
    "planes": 1,
    "row_tiles": 1,
    "block": 64,
    "unroll": "window",
    "filters": "global",
    "warps": 16,
}
ODD = Conv2dProblem(3, 5, 13, 11, 10, 3, 5, stride_h=2, pad_h=1, pad_w=2, groups=5, epilogue="bias_relu")
"""Two output channels per channel; runs of inputs and outputs that begin and end within 16 bytes; a last block with
fewer planes.
"""
HALF = Conv2dProblem(2, 6, 15, 28, 6, 5, 5, pad_h=2, pad_w=2, groups=6, dtype="f16", epilogue="bias")
"""Rows of whole loads, of 8 bytes, with padding within them."""
WIDE = Conv2dProblem(2, 3, 61, 56, 3, 3, 3, stride_h=2, stride_w=2, pad_h=1, pad_w=1, groups=3, dtype="bf16")
"""Row tiles of a plane, the last of which moves up."""
PADDED = Conv2dProblem(2, 4, 3, 4, 4, 5, 1, pad_h=6, pad_w=5, groups=4)
"""A filter taller than the image; rows and columns of outputs that have nothing but padding."""
POINT = Conv2dProblem(1, 7, 1, 1, 7, 1, 1, groups=7, dtype="f16")
"""Planes of a single element."""
SMALL = Conv2dProblem(5, 8, 7, 7, 8, 3, 3, pad_h=1, pad_w=1, groups=8)
"""Planes of 49 elements, which are adjacent in shared memory."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (
            HALF,
            {"thread_q": 4, "planes": 4, "stores": "staged", "unroll": "row", "filters": "shared"},
        ),
        (HALF, {"thread_q": 4, "inputs": "global", "filters": "constant"}),
        (WIDE, {"thread_q": 7, "thread_p": 1, "row_tiles": 4, "inputs": "bulk", "stores": "staged"}),
        (PADDED, {"thread_q": 2, "planes": 8, "stores": "staged"}),
        *long_run(
            (ODD, {"planes": 2, "stores": "staged"}),
            (POINT, {"thread_p": 1, "planes": 4, "stores": "staged", "inputs": "global"}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("depthwise", problem, {**BASE, **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SMALL, {"planes": 8, "thread_q": 7, "stores": "staged"}),
        *long_run((HALF, {"planes": 2, "thread_q": 4, "inputs": "bulk"})),
    ],
)
def test_a_plane_of_infinities_is_no_other_planes_concern(problem: Conv2dProblem, values: dict[str, int | str]) -> None:
    parts = problem.n * problem.c
    assert parts_with_infinities("depthwise", replace(problem, epilogue="none"), {**BASE, **values}, parts) == {1}


@pytest.mark.cxx
def test_products_too_small_for_half_are_rounded_as_such(checked: DeviceEvaluator) -> None:
    problem = Conv2dProblem(9, 17, 9, 75, 17, 1, 1, 2, 1, 2, 2, 2, 2, 17, "f16")
    values: dict[str, int | str] = {"inputs": "shared", "stores": "staged", "thread_p": 7, "thread_q": 7, "planes": 64}
    values |= {"row_tiles": 1, "block": 256, "unroll": "window", "filters": "global", "warps": 8}
    verify("depthwise", problem, values, checked)
