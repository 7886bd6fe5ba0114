"""Paths of `mma_pair` that awkward problems do not take, and rings of buffers that are filled more than once."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem

from .shipped_families import verify

BASE: dict[str, int | str] = {
    "precision": "stored",
    "neighbours": 2,
    "rows": 3,
    "columns": 1,
    "quads": 1,
    "batch": 1,
    "teams": 2,
    "sharing": 1,
    "bands": 1,
    "slots": 2,
    "staging": 2,
    "lookahead": 1,
    "min_blocks": 1,
}
WHOLE = Conv2dProblem(7, 5, 6, 16, 10, 3, 3, dtype="f16", epilogue="bias_relu")
"""Planes of whole vectors, outputs of an image one run; channels that are padded, an even number of taps is."""
FLOAT = Conv2dProblem(3, 8, 8, 8, 16, 2, 5)
"""The same of float; two passes over the channels."""
ODD = Conv2dProblem(7, 8, 7, 9, 21, 3, 5, dtype="bf16", epilogue="bias")
"""Rows of an odd number of 16-bit elements, three words a filter row, outputs that end within a word and a vector."""
SINGLE = Conv2dProblem(5, 4, 9, 11, 21, 2, 5, epilogue="bias")
"""Maps enough for products of a single column, five taps a filter row, an even number of filter rows."""
ROUNDS = Conv2dProblem(6, 3, 15, 15, 24, 2, 2, dtype="f16", epilogue="bias")
"""Strips for two rounds, where each is a single row of two columns."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (WHOLE, {"columns": 2, "staging": 3}),
        (FLOAT, {"precision": "3xtf32", "rows": 2, "teams": 1}),
        (ODD, {"rows": 2, "batch": 2, "slots": 4, "staging": 3, "lookahead": 2}),
        (SINGLE, {"precision": "tf32", "neighbours": 1, "columns": 2, "bands": 2, "lookahead": 0}),
        (ROUNDS, {"rows": 1, "sharing": 2, "slots": 3}),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("mma_pair", problem, {**BASE, **values}, checked)
