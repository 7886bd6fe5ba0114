"""Paths of `mma_sweep` that awkward problems do not take, and rings of buffers that are filled more than once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluate import DeviceEvaluator
from autotune.problem import Conv2dProblem

from .shipped_families import images_with_infinities, verify

BASE: dict[str, int | str] = {
    "bands": 2,
    "cuts": 1,
    "teams": 2,
    "slots": 2,
    "staging": 2,
    "formers": 7,
    "batch": 1,
    "copies": 1,
}
PAIRED = Conv2dProblem(7, 12, 13, 27, 24, 4, 5, dtype="f16", epilogue="bias_relu")
"""Four channels of two pixels are a chunk, beside one of eight; rows of outputs that no multiple of filter rows are."""
FLOAT = Conv2dProblem(5, 12, 11, 27, 24, 3, 3)
"""Whole chunks only, three of a pixel; pieces of a band."""
ODD = Conv2dProblem(7, 3, 9, 14, 13, 3, 4, pad_h=1, pad_w=2, dtype="bf16", epilogue="bias")
"""Images that begin and end within 16 bytes; padding; three bands; maps that fill no tile."""
NARROW = Conv2dProblem(2, 1, 5, 3, 3, 2, 3)
"""One channel of four pixels is a chunk; one column; two images on two multiprocessors."""
WIDE = Conv2dProblem(4, 9, 10, 47, 60, 2, 2, dtype="f16", epilogue="bias")
"""One band; a single channel of eight pixels behind a whole chunk."""
FLAT = Conv2dProblem(5, 6, 10, 21, 13, 1, 3, dtype="f16")
"""One filter row: no sums roll."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (PAIRED, {}),
        (FLOAT, {"cuts": 3, "teams": 3, "slots": 1, "staging": 1, "formers": 3}),
        (ODD, {"bands": 3, "teams": 1, "slots": 1, "staging": 1, "formers": 3}),
        (NARROW, {"bands": 2, "formers": 3}),
        (WIDE, {"bands": 1, "slots": 3, "formers": 3, "batch": 2, "copies": 2}),
        (FLAT, {"bands": 3, "formers": 3}),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_sweep", problem, {**BASE, **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (replace(PAIRED, epilogue="none"), {}),
        (replace(ODD, epilogue="none", dtype="f16"), {"bands": 3, "teams": 1, "slots": 1, "staging": 1, "formers": 3}),
    ],
)
def test_an_image_of_infinities_is_no_other_images_concern(
    problem: Conv2dProblem, values: dict[str, int | str]
) -> None:
    assert images_with_infinities("mma_sweep", problem, {**BASE, **values}) == {1}
