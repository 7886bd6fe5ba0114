"""Paths of `mma_pair` that awkward problems do not reach, and ring buffers that are filled more than once."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from tests.long_run import long_run

from .shipped_families import verify

BASE: dict[str, int | str] = {
    "precision": "stored",
    "mma_q": 2,
    "thread_p": 3,
    "thread_q": 1,
    "channel_groups": 1,
    "commit_rows": 1,
    "consumer_warpgroups": 2,
    "cooperating_warpgroups": 1,
    "row_tiles": 1,
    "stages": 2,
    "epilogue_stages": 2,
    "register_prefetch": 1,
    "min_blocks": 1,
}
WHOLE = Conv2dProblem(7, 5, 6, 16, 10, 3, 3, dtype="f16", epilogue="bias_relu")
"""Planes of whole vectors, one run of outputs per image; padded channels and an even number of taps."""
FLOAT = Conv2dProblem(3, 8, 8, 8, 16, 2, 5)
"""The same in float; two passes over the channels."""
ODD = Conv2dProblem(7, 8, 7, 9, 21, 3, 5, dtype="bf16", epilogue="bias")
"""Rows of an odd number of 16-bit elements, three words per filter row, outputs that end within a word and a vector."""
SINGLE = Conv2dProblem(5, 4, 9, 11, 21, 2, 5, epilogue="bias")
"""Enough output channels for products of a single column, five taps per filter row, an even number of filter rows."""
ROUNDS = Conv2dProblem(6, 3, 15, 15, 24, 2, 2, dtype="f16", epilogue="bias")
"""Strips for two rounds, where each is a single row of two columns."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (WHOLE, {"thread_q": 2, "epilogue_stages": 3}),
        *long_run(
            (FLOAT, {"precision": "3xtf32", "thread_p": 2, "consumer_warpgroups": 1}),
            (ODD, {"thread_p": 2, "commit_rows": 2, "stages": 4, "epilogue_stages": 3, "register_prefetch": 2}),
            (SINGLE, {"precision": "tf32", "mma_q": 1, "thread_q": 2, "row_tiles": 2, "register_prefetch": 0}),
            (ROUNDS, {"thread_p": 1, "cooperating_warpgroups": 2, "stages": 3}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_pair", problem, {**BASE, **values}, checked)
