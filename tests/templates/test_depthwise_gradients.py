"""Gradients of depthwise convolutions: transposed ones, and of the filters."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import BoundTemplate
from autotune.problem import Problem, make_problem
from autotune.trial import Value
from tests.long_run import every, long_run
from tests.problems import FILTER_GRADIENT, FILTER_GRADIENTS, TRANSPOSED_PROBLEMS

from .shipped_families import H200, default_of, family, refuses_changed, verify

FILTERS, PHASES = "conv_filter_gradient_depthwise", "conv_transpose_depthwise_phases"
Values = dict[str, int | str]


def filters(**values: Value) -> Problem:
    """The filter gradient of a depthwise convolution of c channels."""
    channels = {"k": values["c"], "groups": values["c"]}
    return make_problem(FILTER_GRADIENT, {"n": 3, "dtype": "bf16", **values, **channels})


BASE: Values = {"channels": 2, "thread_q": 4, "thread_r": 8, "row_tiles": 1, "block_c": 8, "block_segments": 4}
BASE |= {"unroll": 1, "prefetch": 0, "min_blocks": 1}
SAME = filters(c=18, h=9, w=13, r=5, s=5, pad_h=2, pad_w=2, pad_h_end=2, pad_w_end=2)
"""Columns that no segment divides, and channels that no block divides."""
STRIDED = filters(c=12, h=15, w=14, r=5, s=3, stride_h=2, stride_w=3, pad_h=2, pad_w_end=2, dtype="f16")
"""Unequal padding, and rows of x that meet filter rows of one parity."""
APART = filters(c=8, d=4, h=12, w=11, t=2, r=3, s=2, dilation_h=3, dilation_w=2, pad_d=1, pad_h=3, pad_w=1, dtype="f32")
"""Three dimensions, and dilated filter rows."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SAME, {"unroll": 2, "prefetch": 2, "thread_r": 4}),
        (STRIDED, {"channels": 4, "row_tiles": 2, "block_segments": 2}),
        (APART, {"channels": 1, "thread_q": 7, "prefetch": 2}),
        *long_run(
            (SAME, {"channels": 1, "block_segments": 1, "row_tiles": 2, "thread_q": 13}),
            (STRIDED, {"thread_r": 1, "prefetch": 2, "unroll": 4}),
            (APART, {"channels": 4, "thread_r": 2, "unroll": 2, "row_tiles": 2}),
            (FILTER_GRADIENTS["depthwise"], {"channels": 1}),
        ),
    ],
)
def test_filters_gradient_is_right(problem: Problem, values: Values, checked: DeviceEvaluator) -> None:
    verify(FILTERS, problem, {**BASE, **values}, checked)


FAULTS = {
    "rows of dy go on behind the last": (SAME, "if (t >= rows) next_dy[q] = Words{};", ""),
    "padding is the row before": (SAME, "if (met) add_row", "add_row"),
    "columns behind the last are the next row's": (SAME, "Q % COLUMNS == 0 || q < columns", "true"),
    "a thread's sums are left out": (SAME, "j < BLOCK_SEGMENTS", "j < BLOCK_SEGMENTS - 1"),
    "a part is left out": (SAME, "part < parts; part += 16", "part < parts - 1; part += 16"),
    "sums are overwritten before they are read": (SAME, "if (r > 0) __syncthreads();", ""),
    "frames of the padding are read": (
        APART,
        "if (static_cast<unsigned>(d) >= static_cast<unsigned>(D)) continue;",
        "",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(3, FAULTS))
def test_a_mistake_in_sums_is_found(what: str, host: DeviceEvaluator) -> None:
    problem, *change = FAULTS[what]
    values = {**BASE, **({"channels": 1} if problem is APART else {})}
    assert refuses_changed(FILTERS, problem, values, (change[0], change[1]), host)


def test_a_filter_whose_sums_fit_no_thread_is_divided() -> None:
    problem = filters(c=64, h=56, w=56, r=31, s=31, pad_h=15, pad_w=15, pad_h_end=15, pad_w_end=15)
    assert default_of(FILTERS, problem) is not None


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("depthwise_nhwc", "depthwise", {}),
        ("depthwise_strips", "depthwise", {}),
        ("depthwise_phases", "depthwise up", {}),
        *long_run(
            ("depthwise_toeplitz_sm90", "depthwise", {}),
            ("depthwise_phases", "depthwise", {"thread_h": 4, "thread_w": 1}),
            ("depthwise_phases", "depthwise up", {"channels": 1, "thread_h": 1}),
        ),
    ],
)
def test_transposed_convolution_is_right(name: str, label: str, values: Values, checked: DeviceEvaluator) -> None:
    name, problem = f"conv_transpose_{name}", TRANSPOSED_PROBLEMS[label]
    default = default_of(name, problem)
    assert default is not None
    verify(name, problem, {**default.params, **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "change",
    [
        ("row = tile_p * THREAD_H + PADDING_H / STRIDE_H", "row = tile_p * THREAD_H"),
        *long_run((("d % STRIDE_D != 0 ||", ""),), (("filters + t * (R * S)", "filters"),)),
    ],
)
def test_a_mistake_in_phases_is_found(change: tuple[str, str], host: DeviceEvaluator) -> None:
    problem = TRANSPOSED_PROBLEMS["depthwise up"]
    problem = make_problem(problem.operation, {**problem.values, "padding_h": 2, "stride_d": 2})
    default = default_of(PHASES, problem)
    assert default is not None
    assert refuses_changed(PHASES, problem, default.params, change, host)


@pytest.mark.parametrize("name", ["depthwise_nhwc", "depthwise_strips", "depthwise_toeplitz_sm90"])
def test_a_stride_is_left_to_phases(name: str) -> None:
    bound = BoundTemplate(family(f"conv_transpose_{name}"), TRANSPOSED_PROBLEMS["depthwise up"], H200)
    assert not bound.supported
