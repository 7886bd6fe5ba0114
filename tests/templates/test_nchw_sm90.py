"""Possible errors of Hopper's channels-last families in NCHW: the copy of x, segments of rows, and runs of outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import BoundTemplate
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Problem, make_problem
from tests.long_run import long_run

from .shipped_families import H200, family, refuses_changed, verify

NAME = "implicit_gemm_sm90"
BASE: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 64,
    "schedule": "pingpong",
    "window_rows": 0,
    "folded": 1,
    "epilogue_subtiles": 1,
}
IMAGE = Conv2dProblem(3, 36, 9, 11, 70, 3, 3, pad_h=1, pad_w=1, dtype="f32", layout="nchw", epilogue="bias_add_relu")
"""Planes of an odd number of pixels; channels that end within a tile of the copy, output channels that end within a
warp's.
"""
WIDE = replace(IMAGE, n=2, w=70)
SIGNAL = make_problem(
    operation("conv"),
    {"n": 3, "c": 8, "w": 37, "k": 9, "s": 3, "pad_w": 1, "epilogue": "bias_add", "dilation_w": 2, "layout": "nchw"},
)
VIDEO = make_problem(
    operation("conv"),
    {"n": 2, "c": 12, "d": 4, "h": 5, "w": 13, "k": 9, "t": 2, "r": 3, "s": 3, "pad_d": 1, "pad_h": 1, "pad_w": 1}
    | {"pad_h_end": 1, "epilogue": "bias_add", "layout": "nchw"},
)
TRANSPOSED = make_problem(
    operation("conv_transpose"),
    {"n": 3, "c": 8, "h": 7, "w": 37, "k": 10, "r": 3, "s": 3, "padding_w": 1, "dilation_w": 2}
    | {"epilogue": "bias", "layout": "nchw"},
)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [
        (NAME, replace(WIDE, h=5), {"tile_n": 128, "window_rows": 4, "epilogue_subtiles": 2}),
        *long_run(
            (NAME, IMAGE, {"tile_n": 104}),
            (NAME, replace(IMAGE, epilogue="bias"), {"schedule": "cooperative"}),
            (NAME, IMAGE, {"tile_n": 40, "window_rows": 3}),
            (NAME, replace(WIDE, pad_w=0, s=2, dilation_w=3), {"window_rows": 2}),
            (NAME, replace(IMAGE, c=72, k=36, groups=6, n=2), {}),
            (NAME, replace(IMAGE, c=8, h=8, w=8, r=4, s=4, stride_h=4, stride_w=4, pad_h=0, pad_w=0), {}),
            (NAME, replace(IMAGE, h=7, w=7, n=5), {"tile_n": 128, "window_rows": 16, "epilogue_subtiles": 4}),
            (f"conv_{NAME}", VIDEO, {"schedule": "cooperative"}),
            (f"conv_{NAME}", VIDEO, {"tile_n": 48, "window_rows": 3, "epilogue_subtiles": 2}),
            (f"conv_{NAME}", SIGNAL, {"tile_m": 128, "tile_n": 16, "window_rows": 16, "schedule": "cooperative"}),
            (f"conv_{NAME}", SIGNAL, {"tile_n": 48, "window_rows": 44}),
            (f"conv_transpose_{NAME}", TRANSPOSED, {"schedule": "cooperative"}),
            (f"conv_transpose_{NAME}", TRANSPOSED, {"window_rows": 4, "epilogue_subtiles": 2}),
        ),
    ],
)
def test_config_is_right(name: str, problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(name, problem, {**BASE, **values}, checked)


@pytest.mark.parametrize("problem", [replace(IMAGE, c=34), replace(IMAGE, dtype="f16")])
def test_what_the_copy_does_not_hold_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


FAULTS = {
    "a copy has no columns of padding": ("COPY_STEP - COPY_LEFT", "COPY_STEP"),
    "segments do not overlap": ("pixel / SEGMENT * COPY_STEP", "pixel / SEGMENT * COPY_W"),
    "the last segment ends beyond its row": ("min(Q, ROW_Q - segment * Q)", "Q"),
    "the first line of a run is not stored": ("static_cast<int>(begin % LINE)", "-LINE"),
    "filters are not packed": ("k * FILTER_C + c;", "c * FILTER_C + k;"),
}


@pytest.mark.cxx
@pytest.mark.long
@pytest.mark.parametrize("what", FAULTS)
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 128, "window_rows": 4, "epilogue_subtiles": 2}
    assert refuses_changed(NAME, WIDE, values, FAULTS[what], host)


PHASES = "conv_transpose_phases_sm90"
PHASED: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 64,
    "schedule": "pingpong",
    "joined": "columns",
    "window_rows": 0,
    "epilogue_subtiles": 2,
}
UPSAMPLED = make_problem(
    operation("conv_transpose"),
    {"n": 3, "c": 36, "h": 5, "w": 20, "k": 21, "r": 3, "s": 4, "stride_h": 2, "stride_w": 3, "padding_h": 1}
    | {"padding_w": 1, "epilogue": "bias_add_relu", "layout": "nchw"},
)
"""Rows of three phases, 21 output channels of which fill 63 rows of an MMA."""
DILATED = make_problem(
    operation("conv_transpose"),
    {"n": 2, "c": 12, "d": 3, "h": 4, "w": 9, "k": 40, "t": 3, "r": 3, "s": 3, "groups": 2, "stride_d": 2}
    | {"stride_h": 2, "stride_w": 2, "padding_d": 1, "padding_w": 1, "dilation_d": 2, "dilation_w": 2}
    | {"layout": "nchw", "epilogue": "bias"},
)
"""Phases without taps; groups that are multiplied as one."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (UPSAMPLED, {}),
        *long_run(
            (UPSAMPLED, {"joined": "all", "tile_m": 128, "tile_n": 48, "epilogue_subtiles": 1}),
            (UPSAMPLED, {"joined": "none", "schedule": "cooperative"}),
            (DILATED, {}),
            (DILATED, {"joined": "all", "schedule": "cooperative", "epilogue_subtiles": 1}),
            (DILATED, {"joined": "none", "tile_m": 192, "schedule": "cooperative"}),
        ),
    ],
)
def test_phases_are_stored_between_each_other(
    problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(PHASES, problem, {**PHASED, **values}, checked)
