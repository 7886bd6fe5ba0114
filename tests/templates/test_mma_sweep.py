"""Paths of `mma_sweep` that awkward problems do not reach, and ring buffers that are filled more than once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import H200, family, images_with_infinities, stays_inside, verify

BASE: dict[str, int | str] = {
    "row_tiles": 2,
    "subtiles": 1,
    "consumer_warpgroups": 2,
    "stages": 2,
    "epilogue_stages": 2,
    "producer_warps": 7,
    "producer_pixels": 1,
    "copy_stages": 1,
}
PAIRED = Conv2dProblem(7, 12, 13, 27, 24, 4, 5, dtype="f16", epilogue="bias_relu")
"""A chunk is four channels of two pixels, next to one of eight; the output rows are not a multiple of the filter rows.
"""
FLOAT = Conv2dProblem(5, 12, 11, 27, 24, 3, 3)
"""Whole chunks only, three per pixel; parts of a row tile."""
ODD = Conv2dProblem(7, 3, 9, 14, 13, 3, 4, pad_h=1, pad_w=2, dtype="bf16", epilogue="bias")
"""Images that begin and end within 16 bytes; padding; three row tiles; output channels that do not fill a tile."""
NARROW = Conv2dProblem(2, 1, 5, 3, 3, 2, 3)
"""A chunk is one channel of four pixels; one column; two images on two multiprocessors."""
WIDE = Conv2dProblem(11, 9, 10, 47, 60, 2, 2, dtype="f16", epilogue="bias")
"""One row tile; a single channel of eight pixels after a whole chunk."""
FLAT = Conv2dProblem(5, 6, 10, 21, 13, 1, 3, dtype="f16")
"""One filter row: no sums move."""
THIN = Conv2dProblem(11, 6, 3, 19, 13, 1, 3, dtype="f16")
"""One row of outputs per row tile."""
SINGLE = Conv2dProblem(3, 1, 10, 27, 8, 3, 3, dtype="f16")
"""A chunk is one channel of eight pixels; filters of output channels that fill a tile lie directly before the first
chunk.
"""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (PAIRED, {}),
        *long_run(
            (FLOAT, {"subtiles": 3, "consumer_warpgroups": 3, "stages": 1, "epilogue_stages": 1, "producer_warps": 3}),
            (ODD, {"row_tiles": 3, "consumer_warpgroups": 1, "stages": 1, "epilogue_stages": 1, "producer_warps": 3}),
            (NARROW, {"row_tiles": 2, "producer_warps": 3}),
            (WIDE, {"row_tiles": 1, "stages": 3, "producer_warps": 3, "producer_pixels": 2, "copy_stages": 2}),
            (FLAT, {"row_tiles": 3, "producer_warps": 3}),
            (THIN, {"row_tiles": 3, "consumer_warpgroups": 1, "stages": 1, "epilogue_stages": 1, "producer_warps": 3}),
            (SINGLE, {"producer_warps": 3}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_sweep", problem, {**BASE, **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (replace(PAIRED, epilogue="none"), {}),
        *long_run(
            (
                replace(ODD, epilogue="none", dtype="f16"),
                {"row_tiles": 3, "consumer_warpgroups": 1, "stages": 1, "epilogue_stages": 1, "producer_warps": 3},
            ),
        ),
    ],
)
def test_an_image_of_infinities_is_no_other_images_concern(
    problem: Conv2dProblem, values: dict[str, int | str]
) -> None:
    assert images_with_infinities("mma_sweep", problem, {**BASE, **values}) == {1}


@pytest.mark.cxx
@pytest.mark.long
@pytest.mark.parametrize("problem", [replace(ODD, n=1, c=1, h=4, w=5), replace(ODD, n=2)])
def test_no_byte_before_or_behind_an_array_is_touched(problem: Conv2dProblem) -> None:
    values = {**BASE, "row_tiles": 3 if problem.n == 2 else 1, "producer_warps": 3}
    stays_inside("mma_sweep", problem, values)


def test_an_image_reaches_from_one_vector_to_the_next_or_is_not_served() -> None:
    """Whole vectors are copied, which only adjacent images may share."""
    tiny = Conv2dProblem(3, 1, 1, 7, 3, 1, 1, dtype="f16")
    assert not BoundTemplate(family("mma_sweep"), tiny, H200).supported
    assert BoundTemplate(family("mma_sweep"), replace(tiny, w=8), H200).supported


def test_a_complete_row_of_outputs_has_registers_beside_the_sums() -> None:
    """256 output channels of one filter row are 128 sums per thread, and 128 floats or 64 pairs of halves staged at the
    same time.
    """
    problem = Conv2dProblem(64, 8, 9, 20, 256, 1, 1)
    assert SearchSpace(BoundTemplate(family("mma_sweep"), problem, H200)).default is None
    assert SearchSpace(BoundTemplate(family("mma_sweep"), replace(problem, dtype="f16"), H200)).default is not None
