"""Possible errors of max_pool2d_rows, also for means: windows at edges, vectors that begin before a window, NaNs."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.compilation.toolchain import find_cxx
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from autotune.trial import Config
from tests.compiled import host_device
from tests.long_run import every, long_run

from .shipped_families import family, output_bytes, refuses_changed, verify

NAME = "max_pool2d_rows"
BASE: dict[str, int | str] = {"thread_q": 4, "thread_p": 2, "vector": 4, "block": 128}


def pool(layout: str, window: int, name: str = "max_pool2d", **others: int | str) -> Problem:
    """Windows of a square, a stride of two, padding by half of it."""
    given = {"n": 2, "c": 8, "h": 13, "w": 28, "r": window, "s": window, "stride_h": 2, "stride_w": 2}
    pads = {"pad_h": window // 2, "pad_w": window // 2}
    return make_problem(operation(name), {**given, **pads, "layout": layout, **others})


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (pool("nchw", 3), BASE),
        (pool("nhwc", 3, dtype="f16"), BASE),
        *long_run(
            (pool("nchw", 3, w=30), {**BASE, "vector": 2, "thread_q": 1}),
            (pool("nchw", 2, w=32, dtype="bf16", pad_h=0, pad_w=0), {**BASE, "vector": 8, "thread_q": 8}),
            (pool("nhwc", 5, stride_h=1, stride_w=3), {**BASE, "vector": 2}),
        ),
    ],
)
def test_config_is_right(problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (pool("nhwc", 3, "avg_pool2d", dtype="f16", stride_h=1, stride_w=1), BASE),
        *long_run((pool("nchw", 3, "avg_pool2d"), BASE)),
    ],
)
def test_a_mean_is_right(problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify("avg_pool2d_max_pool2d_rows", problem, values, checked)
    change = ("1.0f / (R * S)", "1.0f / (R * S - 1)")
    assert refuses_changed("avg_pool2d_max_pool2d_rows", problem, values, change, checked)


@pytest.mark.cxx
def test_a_nan_is_the_maximum_of_all_its_windows() -> None:
    problem, device = pool("nchw", 3, n=1, c=1, h=8, w=8), host_device(str(find_cxx()))
    source = render(BoundTemplate(family(NAME), problem, device.info), Config.of(NAME, {**BASE, "thread_p": 1}))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    x[3, 4] = np.nan
    y = np.frombuffer(output_bytes(device, source, {"x": x.tobytes()}), np.float32).reshape(4, 4)
    device.close()
    assert {(int(p), int(q)) for p, q in np.argwhere(np.isnan(y))} == {(1, 2), (2, 2)}
    assert y[3, 3] == 63.0


FAULTS = {
    "padding is zeros": ("inside ? to_float(loaded.at[j]) : EMPTY", "inside ? to_float(loaded.at[j]) : 0.0f"),
    "a window has a row too few": ("i >= p * STRIDE_H + R", "i >= p * STRIDE_H + R - 1"),
    "columns are a vector's first": ("const int at = i + j - BEFORE;", "const int at = i + j;"),
    "the last row of x is left out": ("row >= H", "row >= H - 1"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(2, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, pool("nchw", 3), BASE, FAULTS[what], host)
