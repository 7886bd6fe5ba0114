"""`depthwise_nhwc` with a window that slides down the rows, and faults planted in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.compilation.toolchain import find_cxx
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem
from autotune.trial import Config, Outcome
from tests.compiled import host_device
from tests.long_run import every, long_run

from .shipped_families import FILES, H200, family, images_with_infinities, output_bytes, verify

NAME = "depthwise_nhwc"
Values = dict[str, int | str]
BASE: Values = {
    "channels": 1,
    "thread_p": 7,
    "thread_q": 1,
    "block_c": 32,
    "block_q": 4,
    "block_p": 1,
    "unroll": "sliding",
    "warps": 16,
    "prefetch": 0,
}
TALL = Conv2dProblem(
    *(2, 18, 29, 13, 18, 7, 7), pad_h=3, pad_w=3, groups=18, dtype="f16", layout="nhwc", epilogue="bias_relu"
)
"""Several row tiles, the last of which moves up; 18 channels."""
WHOLE = replace(TALL, n=3, c=20, k=20, groups=20, h=7, w=7, r=5, s=5, pad_h=2, pad_w=2, dtype="bf16", epilogue="bias")
"""A thread has all rows and columns of an image, so that padding is known when it is compiled."""
BROAD = replace(WHOLE, n=2, c=18, k=18, groups=18, h=14, w=14, dtype="f16", epilogue="bias_silu")
"""The same for the largest number of columns per thread: in most steps all rows are open. Sums carry a factor."""
STRIDED = replace(TALL, c=36, k=36, groups=36, h=23, w=21, r=5, s=5, stride_h=2, stride_w=2, pad_h=2, pad_w=2)
"""An odd number of rows: the last step has a row below the image."""
EVEN = replace(STRIDED, c=16, k=16, groups=16, h=28, w=22, r=3, s=3, pad_h=1, pad_w=1, dtype="bf16", epilogue="none")
"""An odd padding: steps begin a row before the padding does."""
VALID = replace(STRIDED, pad_h=0, pad_w=0, epilogue="none")
FAR = replace(TALL, n=1, c=8, k=8, groups=8, h=3, w=9, r=3, s=3, stride_h=3, pad_h=9, pad_w=1, epilogue="bias")
"""Output rows that have nothing but padding, above the image and below it."""
APART = replace(FAR, h=31, stride_h=2, pad_h=3, pad_w=2, dilation_h=3, dilation_w=2, dtype="f32", epilogue="bias_relu")
"""Steps without a tap for some of the output rows."""
SKIPPED = replace(APART, h=40, r=2, stride_h=4, pad_h=1, dilation_h=1)
"""Rows between the taps of one output row and the next one's."""
WIDE: Values = {"channels": 2, "thread_q": 7, "thread_p": 14, "block_c": 16, "block_q": 2, "warps": 8}
LONG: Values = {"channels": 2, "thread_p": 14, "thread_q": 2, "block_c": 16, "warps": 8}
FEW: Values = {"channels": 4, "thread_p": 4, "block_c": 2, "block_q": 1}
TWO: Values = {"channels": 2, "thread_q": 4, "block_q": 2, "warps": 8}


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (WHOLE, {"channels": 2, "thread_q": 7, "block_c": 16, "block_q": 1, "warps": 12}),
        (STRIDED, TWO),
        (EVEN, {"channels": 4, "thread_p": 14, "thread_q": 2, "block_c": 4, "prefetch": 4}),
        (BROAD, {"thread_q": 14, "thread_p": 14, "block_q": 1, "warps": 8}),
        *long_run(
            (TALL, LONG),
            (FAR, FEW),
            (TALL, {"warps": 12}),
            (WHOLE, {"channels": 4, "thread_q": 2, "block_c": 8, "warps": 8}),
            (VALID, {"thread_q": 2, "block_c": 64, "block_q": 2, "prefetch": 2}),
            (EVEN, {"channels": 8, "thread_p": 14, "thread_q": 2, "block_c": 2, "block_q": 2, "warps": 8}),
            (APART, {"channels": 2, "thread_q": 2, "block_c": 4, "prefetch": 4}),
            (SKIPPED, {"channels": 2, "thread_p": 14, "block_c": 4}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: Values, checked: DeviceEvaluator) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


@pytest.mark.cxx
def test_an_infinity_stays_in_its_image() -> None:
    assert images_with_infinities(NAME, replace(TALL, n=3, epilogue="none"), {**BASE, **LONG}) == {1}


@pytest.mark.cxx
def test_infinite_sums_become_the_limits_of_silu_and_a_nan_stays_one() -> None:
    problem = replace(BROAD, n=1, c=32, k=32, groups=32)
    device = host_device(str(find_cxx()))
    source = render(BoundTemplate(family(NAME), problem, device.info), Config.of(NAME, {**BASE, **WIDE}))
    assert "ScaledSilu" in source.program.text
    x = np.empty((problem.h, problem.w, 8, 4), np.float16)
    x[:] = -np.inf, np.inf, np.nan, 0.0
    one, nothing = np.ones((problem.k, problem.r, problem.s), np.float16), np.zeros(problem.k, np.float16)
    inputs = {"x": x.tobytes(), "w": one.tobytes(), "bias": nothing.tobytes()}
    found = np.frombuffer(output_bytes(device, source, inputs), np.float16).reshape(-1, 4)
    device.close()
    np.testing.assert_array_equal(found, np.broadcast_to(np.array([0.0, np.inf, np.nan, 0.0]), found.shape))


FAULTS: dict[str, tuple[Conv2dProblem, Values, str, str]] = {
    "rows of padding are read": (FAR, FEW, "return ROWS_INSIDE ||", "return true ||"),
    "a row of padding keeps the row before": (STRIDED, TWO, "if (!row_inside(row + h)) clear(next[h]);", ""),
    "a row is loaded after the last": (TALL, {"warps": 12}, "t + 1 < end && row_inside", "row_inside"),
    "an output row that ends in padding is not stored": (
        TALL,
        {"warps": 12},
        "(int i = 1; i < OPEN",
        "(int i = 2; i < OPEN",
    ),
    "an output row begins with another's sums": (
        TALL,
        LONG,
        "at + 1 < OPEN ? accumulator[at + 1][q][i] : bias[i]",
        "accumulator[(at + 1) % OPEN][q][i]",
    ),
    "an output row loses a row": (EVEN, {"block_c": 16}, "return tap >= 0 &&", "return tap >= 1 &&"),
    "a row is stored before its last input row": (EVEN, {"block_c": 16}, "(h == STRIDE_H - 1) store", "(h == 0) store"),
    "a first row is stored before its last input row": (
        EVEN,
        {"block_c": 16},
        "i == 0 && h == STRIDE_H - 1) store",
        "i == 0 && h == 0) store",
    ),
    "a column is added between two outputs": (STRIDED, TWO, "from >= 0 && from % STRIDE_W == 0", "from >= 0"),
    "the bias lacks SiLU's factor": (BROAD, WIDE, "SCALE * to_float(bias", "to_float(bias"),
    "the filter lacks SiLU's factor": (BROAD, WIDE, "filter[i][j] *= SCALE", "filter[i][j] *= 1.0f"),
    "all rows are taken for open a step early": (TALL, LONG, "&& t >= OPEN - 1", "&& t >= OPEN - 2"),
    "rows that begin in the padding have no bias": (
        TALL,
        LONG,
        "    start(accumulator, bias);\n    Words next[STRIDE_H]",
        "    start(accumulator, {});\n    Words next[STRIDE_H]",
    ),
    "steps begin at the padding": (EVEN, {"block_c": 16}, "(stride_h - pad_h % stride_h) % stride_h", "0"),
    "a row below the image is brought to L2": (
        TALL,
        {"warps": 12, "prefetch": 4},
        "static_cast<unsigned>(row) >= static_cast<unsigned>(rows)) return;",
        "row < 0 || rows == 0) return;",
    ),
    "channels behind the last are brought to L2": (
        replace(TALL, c=65, k=65, groups=65),
        {"block_c": 64, "block_q": 1, "warps": 12, "prefetch": 4},
        "first < COLUMNS_A_PASS && inside",
        "first < COLUMNS_A_PASS",
    ),
    "columns behind the last are brought to L2": (
        VALID,
        {"thread_q": 2, "block_c": 64, "block_q": 2, "prefetch": 2},
        "min(COLUMNS * STRIDE_W, W - column - PAD_W) - first",
        "COLUMNS * STRIDE_W",
    ),
    "steps begin after output rows have ended": (
        FAR,
        FEW,
        "(max(-row, 0) / STRIDE_H, OPEN - 1)",
        "(max(-row, 0) / STRIDE_H, OPEN)",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("fault", every(9, FAULTS))
def test_fault_is_found(fault: str, tmp_path: Path, checked: DeviceEvaluator) -> None:
    problem, values, right, wrong = FAULTS[fault]
    texts = {
        file.name: file.read_text(encoding="utf-8")
        for file in (FILES[NAME].path, *FILES[NAME].path.parent.glob("_depthwise_*.cuh"))
    }
    assert sum(text.count(right) for text in texts.values()) == 1
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(right, wrong), encoding="utf-8")
    family = load_template(tmp_path / FILES[NAME].path.name)
    source = render(BoundTemplate(family, problem, H200), Config.of(NAME, {**BASE, **values}))
    binary = checked.compile(source).result()
    checked.begin_layer(problem)
    with pytest.raises(Rejected) as found:
        checked.verify(source, binary)
    assert found.value.outcome in {Outcome.WRONG_RESULT, Outcome.RUNTIME}
