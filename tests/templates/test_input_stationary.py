"""`input_stationary` on more than the one awkward problem that it serves: bands, an epilogue, many images a block."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluate import DeviceEvaluator
from autotune.problem import Conv2dProblem

from .shipped_families import verify

EVEN = Conv2dProblem(5, 1, 20, 44, 6, 3, 5, epilogue="bias_relu")
"""Outputs of 18 x 40: two bands of 9 rows, whose 9 x 7 tiles keep two warps busy; the last of a row overlap others."""


@pytest.mark.cxx
def test_ring_of_bands_goes_round_often(checked: DeviceEvaluator) -> None:
    values = {
        "thread_p": 1,
        "thread_q": 6,
        "bands": 2,
        "thread_k": 2,
        "staging": 2,
        "ahead": 0,
        "min_blocks": 2,
    }
    verify("input_stationary", EVEN, values, checked)
