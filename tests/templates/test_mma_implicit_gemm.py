"""Paths of `mma_implicit_gemm` that awkward problems do not reach, and buffers that are filled more than once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.long_run import every, long_run

from .shipped_families import H200, family, images_with_infinities, stays_inside, verify

BASE: dict[str, int | str] = {
    "precision": "3xtf32",
    "consumer_warpgroups": 2,
    "subtiles": 1,
    "block_tiles_k": 4,
    "stage_channels": 8,
    "stages": 2,
}
SQUARE = Conv2dProblem(11, 36, 7, 7, 60, 3, 3, pad_h=1, pad_w=1, epilogue="bias_relu")
"""Blocks that begin in one image and end in another; more blocks than run at once, five chunks each."""
APART = Conv2dProblem(3, 24, 19, 31, 24, 2, 5, 2, 3, 1, 4, 3, 2, epilogue="bias")
"""Columns by their remainder after division by a stride that is also the dilation of filter columns."""
POINTS = Conv2dProblem(5, 61, 15, 13, 70, 1, 1, 2, 2)
"""Rows and columns that no filter meets; channels that do not fill a chunk."""
ROW = Conv2dProblem(5, 16, 9, 40, 24, 1, 7, 3, 2, pad_w=3)
"""Filters of one row, strides in both directions."""
COLUMN = Conv2dProblem(4, 23, 30, 8, 24, 7, 1, 2, 3, pad_h=2, epilogue="bias")
"""Filters of one column; an image with fewer pixels than a block."""
SKIPPED = Conv2dProblem(25, 16, 13, 11, 24, 2, 2, 4, 5)
"""Rows between neighbouring outputs that no filter meets, also before the next image."""
HALVES = Conv2dProblem(3, 24, 9, 14, 24, 4, 5, 2, 1, 1, 1, epilogue="bias")
"""Pairs of neighbours are copied at once; padding is wider before a row than filters need."""
QUARTERS = Conv2dProblem(2, 16, 7, 12, 24, 2, 3, pad_w=5, dilation_h=2, dilation_w=4)
"""Four neighbours are copied at once; padding as wide as one and a quarter times that."""
FEW = Conv2dProblem(1, 24, 5, 6, 5, 3, 3)
"""Fewer pixels than a warpgroup computes, fewer output channels than the smallest product has."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SQUARE, {"consumer_warpgroups": 3, "subtiles": 2, "block_tiles_k": 8, "precision": "tf32", "stages": 3}),
        *long_run(
            (APART, {"block_tiles_k": 3, "stages": 3}),
            (SQUARE, {}),
            (SQUARE, {"consumer_warpgroups": 1, "subtiles": 3, "block_tiles_k": 4, "stage_channels": 16}),
            (POINTS, {"consumer_warpgroups": 4, "block_tiles_k": 3, "stage_channels": 64, "precision": "tf32"}),
            (
                ROW,
                {
                    "consumer_warpgroups": 1,
                    "subtiles": 4,
                    "block_tiles_k": 3,
                    "precision": "tf32",
                    "stage_channels": 16,
                },
            ),
            (COLUMN, {"block_tiles_k": 3}),
            (SKIPPED, {"block_tiles_k": 3}),
            (HALVES, {"block_tiles_k": 3}),
            (QUARTERS, {"block_tiles_k": 3, "precision": "tf32"}),
            (FEW, {"consumer_warpgroups": 1, "block_tiles_k": 3, "stages": 2}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_implicit_gemm", problem, {**BASE, **values}, checked)


@pytest.mark.parametrize(
    "problem",
    [
        Conv2dProblem(1, 512, 7, 7, 512, 3, 3, pad_h=1, pad_w=1),
        Conv2dProblem(2, 1024, 7, 7, 1024, 1, 1),
        Conv2dProblem(8, 64, 1, 1000, 64, 1, 1),
        Conv2dProblem(1, 64, 512, 512, 64, 1, 1),
    ],
)
def test_few_pixels_and_long_rows_are_served(problem: Conv2dProblem) -> None:
    for precision in ("tf32", "3xtf32"):
        space = SearchSpace(
            BoundTemplate(family("mma_implicit_gemm"), problem, H200, Admission(prune=True)),
            {"precision": (precision,)},
        )
        assert space.default is not None


def test_packed_filters_that_31_bits_do_not_count_are_refused() -> None:
    """A single output channel, which is computed as 24."""
    problem = Conv2dProblem(1, 1 << 20, 1, 1, 1, 7, 7, pad_h=6, pad_w=6)
    bound = BoundTemplate(family("mma_implicit_gemm"), problem, H200, Admission(prune=True))
    with pytest.raises(Rejected, match="a packed filter's index fits 31 bits"):
        bound.check(Config.of("mma_implicit_gemm", {**BASE, "consumer_warpgroups": 1, "block_tiles_k": 3}))


@pytest.mark.cxx
@pytest.mark.parametrize("precision", every(2, ["3xtf32", "tf32"]))
def test_an_image_of_infinities_is_no_other_images_concern(precision: str) -> None:
    problem = replace(SQUARE, epilogue="none")
    assert images_with_infinities("mma_implicit_gemm", problem, {**BASE, "precision": precision}) == {1}


@pytest.mark.cxx
@pytest.mark.parametrize("problem", [HALVES, *long_run((replace(SQUARE, n=2),), (replace(FEW, epilogue="bias"),))])
def test_no_byte_before_or_behind_an_array_is_touched(problem: Conv2dProblem) -> None:
    stays_inside("mma_implicit_gemm", problem, {**BASE, "consumer_warpgroups": 1, "block_tiles_k": 3})
