"""Possible errors of implicit_gemm_3xtf32_sm90: parts, their products and promotion, its warps' waits, groups."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.long_run import every, long_run

from .shipped_families import H200, family, images_with_infinities, refuses_changed, verify

NAME = "implicit_gemm_3xtf32_sm90"
BASE: dict[str, int | str] = {"tile_m": 64, "tile_n": 32, "epilogue_subtiles": 1}
WIDE: dict[str, int | str] = {"tile_m": 128, "tile_n": 48, "epilogue_subtiles": 3}
DEEP = Conv2dProblem(2, 36, 7, 6, 120, 3, 3, 1, 1, 1, 1, dtype="f32", layout="nhwc", epilogue="bias_relu")
"""18 stages, which are promoted three times; the last slice has 4 channels; pixels that end within a tile."""
POINTS = replace(DEEP, c=232, k=232, r=1, s=1, pad_h=0, pad_w=0, epilogue="bias_add_relu")
STRIDED = replace(DEEP, h=13, w=14, stride_h=2, stride_w=3, dilation_h=2, dilation_w=2, pad_w=2, epilogue="none")
GROUPED = replace(DEEP, c=24, k=128, groups=2, epilogue="bias_add")


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (DEEP, BASE),
        *long_run(
            (POINTS, WIDE),
            (GROUPED, BASE),
            (DEEP, WIDE),
            (STRIDED, {**BASE, "tile_n": 64, "epilogue_subtiles": 2}),
            (POINTS, {**BASE, "tile_n": 80, "epilogue_subtiles": 5}),
            (replace(GROUPED, k=256), WIDE),
            (replace(DEEP, n=1, h=1, w=1), {**BASE, "tile_n": 16}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


@pytest.mark.cxx
def test_an_infinity_stays_in_its_image() -> None:
    assert images_with_infinities(NAME, replace(DEEP, n=3, epilogue="none"), BASE) == {1}


@pytest.mark.parametrize(
    "problem",
    [
        replace(DEEP, c=34),
        replace(DEEP, k=118),
        replace(DEEP, dtype="f16", c=40),
        replace(DEEP, layout="nchw"),
        replace(GROUPED, k=96),
        replace(GROUPED, c=12),
    ],
)
def test_what_tma_does_not_copy_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "values",
    [
        {"tile_m": 128, "tile_n": 192, "epilogue_subtiles": 8},
        *long_run(({"tile_m": 64, "tile_n": 256, "epilogue_subtiles": 4},)),
    ],
)
def test_the_largest_tiles_compile_without_spills_and_products_overlap(values: dict[str, int | str]) -> None:
    problem = replace(POINTS, n=8, c=2048, k=512, h=7, w=7)
    source = render(BoundTemplate(family(NAME), problem, H200), Config.of(NAME, values))
    binary = compile_cubin(source.program, 90, find_nvcc())
    assert binary.resources.spill_bytes == 0
    assert not re.search(r"C7\d{3}", binary.log), binary.log


FAULTS = {
    "the small parts of the filters are left out": (
        "w + (at + W_BYTES / DESCRIPTOR_UNIT), x + at, true",
        "w + at, x + at, k_block < 0",
    ),
    "the small parts of the pixels are the big ones": ("(at + X_BYTES / DESCRIPTOR_UNIT)", "at"),
    "sums are not begun anew after promotion": ("state.index, k_tile > begin,", "state.index, k_tile > 0,"),
    "products do not wait for the splitters": (
        "        barrier_wait(split + state.index, state.phase);\n",
        "",
    ),
    "what was promoted last is all there is": ("clear(sums);\n", ""),
    "the splitters do not wait for pixels": ("            barriers.pipeline.consumer_wait(state);\n", ""),
    "splitters write without a fence": (
        "            fence_bulk();\n            __syncwarp();",
        "            __syncwarp();",
    ),
    "splitters leave out the last pixels": ("i < X_BYTES; i +=", "i < X_BYTES - 1024; i +="),
    "the producer does not wait": (
        "pipeline.producer_acquire(state, (FILTERS",
        "barrier_arrive_expect(pipeline.full + state.index, (FILTERS",
    ),
    "a stage is released while products read it": ("            wgmma_wait_group<1>();\n", ""),
    "outputs are stored without a fence": (
        "        fence_bulk();\n        sync_threads<128>",
        "        sync_threads<128>",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, DEEP, {**BASE, "tile_m": 128, "tile_n": 48}, FAULTS[what], host)


@pytest.mark.cxx
def test_a_group_reads_its_own_channels(host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, GROUPED, BASE, ("first_channel(k) + c", "c"), host)
