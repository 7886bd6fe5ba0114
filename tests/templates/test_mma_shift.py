"""Paths of `mma_shift` that awkward problems do not reach, and ring buffers that are filled more than once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import images_with_infinities, verify

BASE: dict[str, int | str] = {
    "precision": "stored",
    "mma_p": 2,
    "image_tiles": 2,
    "filters": "shared",
    "consumer_warpgroups": 2,
    "stages": 2,
    "epilogue_stages": 1,
    "producer_warps": 3,
    "producer_pixels": 1,
}
FOLDED = Conv2dProblem(7, 12, 13, 27, 24, 4, 5, dtype="f16", epilogue="bias_relu")
"""A chunk is four channels by two rows; an odd number of chunks is multiplied; a last group of rows with a single row.
"""
FLOAT = Conv2dProblem(5, 12, 11, 27, 24, 3, 3)
"""Image tiles that differ in number from the warpgroups; the last chunks of two rows are multiplied together."""
ODD = Conv2dProblem(7, 3, 9, 14, 13, 3, 4, pad_h=1, pad_w=2, dtype="bf16", epilogue="bias")
"""Images of outputs that begin and end within 16 bytes; padding; channels that do not fill a chunk."""
NARROW = Conv2dProblem(2, 1, 5, 3, 3, 2, 3)
"""One column; a chunk is four rows of one channel."""
LARGEST = Conv2dProblem(1, 9, 20, 21, 64, 2, 2, epilogue="bias")
"""As many output channels as a product has rows; one image."""
DEEP = Conv2dProblem(3, 64, 13, 13, 10, 5, 5)
"""Filters that leave no space for zeros next to them; planes that lack a row, whose place another row takes."""
SHORT = Conv2dProblem(5, 3, 10, 21, 13, 2, 3, dtype="f16", epilogue="bias")
"""A last group of rows that reads beyond the last plane; fewer output channels than a product has rows for."""
EIGHT = Conv2dProblem(3, 5, 19, 20, 24, 5, 5, epilogue="bias")
"""Eight rows are three products; in one of them the last group of rows has no output."""
BROAD = Conv2dProblem(2, 9, 12, 11, 40, 2, 3, pad_h=1, pad_w=1, dtype="f16")
"""Eight rows are five products, which begin and end within an output row."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FOLDED, {"filters": "registers", "consumer_warpgroups": 1, "producer_warps": 7}),
        *long_run(
            (ODD, {"mma_p": 4, "image_tiles": 1, "stages": 1, "epilogue_stages": 2}),
            (FOLDED, {"stages": 3, "epilogue_stages": 2}),
            (FLOAT, {"precision": "tf32", "consumer_warpgroups": 3, "epilogue_stages": 2}),
            (NARROW, {"precision": "tf32", "mma_p": 4, "image_tiles": 1, "consumer_warpgroups": 1}),
            (LARGEST, {"precision": "tf32", "mma_p": 1, "image_tiles": 3, "producer_pixels": 2}),
            (DEEP, {"precision": "tf32", "mma_p": 4, "image_tiles": 1, "epilogue_stages": 2}),
            (SHORT, {"mma_p": 4, "image_tiles": 1, "epilogue_stages": 2, "producer_pixels": 2}),
            (
                EIGHT,
                {"precision": "tf32", "mma_p": 8, "image_tiles": 1, "consumer_warpgroups": 3, "producer_pixels": 2},
            ),
            (BROAD, {"mma_p": 8, "image_tiles": 1, "epilogue_stages": 2}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_shift", problem, {**BASE, **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FLOAT, {"precision": "tf32", "mma_p": 2, "epilogue_stages": 2}),
        (replace(FOLDED, epilogue="none"), {}),
        *long_run(
            (
                replace(SHORT, epilogue="none"),
                {"mma_p": 4, "image_tiles": 1, "epilogue_stages": 2, "producer_pixels": 2},
            ),
            (
                replace(EIGHT, epilogue="none"),
                {"precision": "tf32", "mma_p": 8, "image_tiles": 1, "producer_pixels": 2},
            ),
        ),
    ],
)
def test_an_image_of_infinities_is_no_other_images_concern(
    problem: Conv2dProblem, values: dict[str, int | str]
) -> None:
    assert images_with_infinities("mma_shift", problem, {**BASE, **values}) == {1}
