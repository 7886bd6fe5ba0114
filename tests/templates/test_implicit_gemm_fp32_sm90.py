"""Possible errors of implicit_gemm_fp32_sm90: the channels of a stage, swizzled rows, its warps' waits, groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import BoundTemplate
from autotune.problem import Conv2dProblem, Problem
from tests.long_run import every, long_run
from tests.problems import TRANSPOSED_PROBLEMS

from .shipped_families import H200, family, refuses_changed, verify

NAME = "implicit_gemm_fp32_sm90"
BASE: dict[str, int | str] = {
    "thread_m": 4,
    "thread_n": 4,
    "warps_m": 1,
    "warps_n": 4,
    "unroll": 2,
    "min_blocks": 3,
}
WIDE: dict[str, int | str] = {**BASE, "thread_m": 8, "thread_n": 8, "warps_m": 2, "warps_n": 2}
DEEP = Conv2dProblem(2, 36, 7, 6, 20, 3, 3, 1, 1, 1, 1, dtype="f32", layout="nhwc", epilogue="bias_add_relu")
"""18 stages, every other one of four channels; pixels and output channels that end within a tile."""
GROUPED = replace(DEEP, c=24, k=64, groups=2, epilogue="bias")


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [
        (NAME, DEEP, BASE),
        (f"conv_transpose_{NAME}", TRANSPOSED_PROBLEMS["floats"], WIDE),
        *long_run(
            (NAME, GROUPED, BASE),
            (NAME, replace(DEEP, c=64, k=100, r=1, s=1, pad_h=0, pad_w=0), {**WIDE, "unroll": 4}),
            (NAME, replace(DEEP, h=13, w=14, stride_h=2, stride_w=3, dilation_w=2, pad_w=2), WIDE),
        ),
    ],
)
def test_config_is_right(name: str, problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(name, problem, values, checked)


@pytest.mark.parametrize("problem", [replace(DEEP, c=34), replace(DEEP, dtype="f16", c=40), replace(GROUPED, k=40)])
def test_what_tma_does_not_copy_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


FAULTS = {
    "rows are not swizzled": ("(chunk ^ place)", "chunk"),
    "the last channels are those of a whole stage before": ("? LAST_CHUNKS : CHUNKS", "? CHUNKS : LAST_CHUNKS"),
    "warps do not wait for a stage": ("            pipeline.consumer_wait(state);\n", ""),
    "a stage is released before it is read": ("pipeline.init(WARPS)", "pipeline.init(1)"),
    "output channels that do not exist are stored": ("if (k + m * 4 >= K) break;", ""),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, DEEP, BASE, FAULTS[what], host)
