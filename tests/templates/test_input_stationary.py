"""`input_stationary` on more than the one awkward problem that it supports: all kinds of work units, an epilogue."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import every, long_run

from .shipped_families import verify

EVEN = Conv2dProblem(5, 1, 20, 44, 6, 3, 5, epilogue="bias_relu")
"""Outputs of 18 x 40."""

FEW: Mapping[str, int | str] = {
    "epilogue_stages": 2,
    "prefetch_tiles": 0,
    "min_blocks": 2,
    "window": "registers",
    "stores": "staged",
}
"""So that the ring buffers are reused often."""

UNITS: Mapping[str, Mapping[str, int | str]] = {
    # The last of a row's 7 tiles overlaps another; 9 rows keep two warps busy.
    "half an image": {"thread_p": 1, "thread_q": 6, "warps": 2, "thread_k": 2, "producer": "last", "filters": "shared"},
    # 16 of an image's 9 tile rows, the last unit 13: of two or three images.
    "some images": {
        "thread_p": 2,
        "thread_q": 5,
        "warps": 4,
        "thread_k": 1,
        "producer": "apart",
        "filters": "constant",
    },
    # 4 tile rows of an image's 6.
    "a warp alone": {
        "thread_p": 3,
        "thread_q": 5,
        "warps": 1,
        "thread_k": 2,
        "producer": "last",
        "filters": "constant",
    },
    # Three images, the last unit two; the last of an image's 5 tile rows overlaps another, and 8 lanes have no tile.
    "whole images": {"thread_p": 4, "thread_q": 5, "warps": 4, "thread_k": 3, "producer": "apart", "filters": "shared"},
}


WIDE = Conv2dProblem(5, 1, 20, 46, 6, 3, 7)
"""Outputs of 18 x 40; every other row of inputs begins 8 bytes behind a multiple of 16."""

DIRECT: Mapping[str, int | str] = {"stores": "direct", "epilogue_stages": 4, "thread_q": 4}
AGAIN: Mapping[str, int | str] = {"window": "shared", "thread_k": 1, **DIRECT}
WAYS: Mapping[str, tuple[Conv2dProblem, Mapping[str, int | str]]] = {
    # 12 of an image's 9 tile rows, the last unit 9: of two images.
    "stored directly": (EVEN, {"thread_p": 2, "warps": 4, "thread_k": 3, "producer": "apart", **DIRECT}),
    # Two images, the last unit one; the last of an image's 5 tile rows overlaps another, and 28 lanes have no tile.
    "read again in pairs": (EVEN, {"thread_p": 4, "warps": 4, "producer": "last", **AGAIN}),
    # An image's 3 tile rows.
    "read again in vectors": (EVEN, {"thread_p": 6, "warps": 1, "producer": "last", **AGAIN}),
    # 12 of an image's 3 tile rows, the last unit 3.
    "read again in vectors and pairs": (WIDE, {"thread_p": 6, "warps": 4, "producer": "apart", **AGAIN}),
}


@pytest.mark.cxx
@pytest.mark.parametrize("unit", every(3, UNITS))
def test_units_of_every_kind_are_right(unit: str, checked: DeviceEvaluator) -> None:
    verify("input_stationary", EVEN, {**FEW, **UNITS[unit]}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize("filters", ["shared", *long_run(("constant",))])
@pytest.mark.parametrize("way", every(3, WAYS))
def test_inputs_may_be_read_again_and_outputs_stored_directly(way: str, filters: str, checked: DeviceEvaluator) -> None:
    problem, values = WAYS[way]
    verify("input_stationary", problem, {**FEW, "filters": filters, **values}, checked)
