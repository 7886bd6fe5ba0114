"""Possible errors of implicit_gemm_rs_sm90: pixels from registers in either layout, segments of rows, its pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import BoundTemplate
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Problem, make_problem
from tests.long_run import long_run
from tests.problems import TRANSPOSED_PROBLEMS

from .shipped_families import H200, family, refuses_changed, verify

NAME = "implicit_gemm_rs_sm90"
SPLIT: dict[str, int | str] = {"arithmetic": "split", "tile_m": 16, "blocks": 1}
ROUNDED: dict[str, int | str] = {"arithmetic": "mma", "tile_m": 24, "blocks": 2}
NHWC = Conv2dProblem(2, 36, 5, 6, 20, 2, 2, 1, 1, 1, 1, dtype="f32", layout="nhwc", epilogue="bias_add_relu")
"""Eight stages, every other one of four channels; pixels and output channels that end within a tile."""
NCHW = Conv2dProblem(2, 9, 3, 36, 13, 2, 3, 1, 1, 1, 1, dtype="f32", layout="nchw", epilogue="bias_add_relu")
"""Rows of a segment and a quarter (an odd number of outputs in the long run); channels of a stage and an eighth."""
NARROW = Conv2dProblem(3, 24, 7, 6, 64, 3, 3, 2, 1, 1, 1, groups=2, dtype="f32", layout="nchw", epilogue="bias_add")
"""Rows that fill little of a segment, so that x is copied; tiles that end in other images; groups."""
VIDEO = make_problem(
    operation("conv"),
    {"n": 2, "c": 9, "d": 4, "h": 3, "w": 12, "k": 8, "t": 2, "r": 3, "s": 3, "stride_d": 2, "stride_w": 3}
    | {"dilation_w": 2, "pad_d": 1, "pad_h": 1, "pad_w_end": 3, "epilogue": "bias"},
)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [
        (NAME, NHWC, SPLIT),
        (NAME, replace(NCHW, w=35), SPLIT),
        (NAME, NARROW, {**SPLIT, "tile_m": 32}),
        *long_run(
            (NAME, NCHW, SPLIT),
            (NAME, replace(NCHW, w=7, h=5, r=1, s=1, pad_h=0, pad_w=0), ROUNDED),
            (NAME, NHWC, ROUNDED),
            (NAME, replace(NARROW, layout="nhwc"), SPLIT),
            (NAME, replace(NARROW, w=30), SPLIT),
            (NAME, replace(NCHW, c=38, s=4), ROUNDED),
            (f"conv_transpose_{NAME}", TRANSPOSED_PROBLEMS["floats"], SPLIT),
            (f"conv_{NAME}", VIDEO, ROUNDED),
            (NAME, replace(NCHW, w=10, h=6, r=1, s=1, pad_h=0, pad_w=0), ROUNDED),
        ),
    ],
)
def test_config_is_right(name: str, problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(name, problem, values, checked)


@pytest.mark.parametrize("problem", [replace(NHWC, c=34), replace(NHWC, dtype="f16", c=40), replace(NARROW, c=12)])
def test_what_tma_does_not_copy_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


FAULTS = {
    "channels are not in the order of the packed filters": ("/ 8 * 8 + channel_of(i % 8)", ""),
    "registers are loaded while they are multiplied": ("wgmma_wait_group<K_BLOCKS % 2 == 1 ? 0 : 1>();", ""),
    "a stage is released before it is read": ("pipelines.pixels.init(4 * CONSUMERS)", "pipelines.pixels.init(1)"),
    "TMA loads from between multiples of 16 bytes": ("- PAD_W - SHIFT +", "- PAD_W +"),
    "columns beyond a row are stored": ("min(run * SEGMENT, ROW_Q - segment.column)", "run * SEGMENT"),
}


@pytest.mark.cxx
@pytest.mark.long
@pytest.mark.parametrize("what", FAULTS)
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, NCHW, SPLIT, FAULTS[what], host)


@pytest.mark.cxx
@pytest.mark.long
@pytest.mark.parametrize("fault", [("group_c + c, tap", "c, tap"), ("(pixel / PLANE * static", "(0 * static")])
def test_narrow_images_are_read_and_stored_where_they_lie(fault: tuple[str, str], host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, NARROW, SPLIT, fault, host)
