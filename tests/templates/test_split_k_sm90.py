"""Possible errors of split_k_sm90: a block's part of the products, a cluster's sums, tiles at the ends, barriers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.long_run import every, long_run

from .shipped_families import H200, family, images_with_infinities, refuses_changed, verify

NAME = "split_k_sm90"
BASE: dict[str, int | str] = {"tile_m": 64, "tile_n": 16, "splits": 4, "stages": 2}
WIDE = {**BASE, "tile_m": 128, "tile_n": 40, "splits": 2, "stages": 3}
DEEP = Conv2dProblem(2, 136, 7, 6, 120, 3, 3, 1, 1, 1, 1, dtype="f16", layout="nhwc", epilogue="bias_relu")
"""27 parts of products, which no number of blocks divides; the last slice has 8 channels; two tiles of output channels.
"""
POINTS = replace(DEEP, c=520, k=232, r=1, s=1, pad_h=0, pad_w=0, epilogue="bias_add_relu")
STRIDED = replace(DEEP, h=13, w=14, stride_h=2, stride_w=3, dilation_h=2, dilation_w=2, pad_w=2, epilogue="none")


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (DEEP, BASE),
        *long_run(
            (POINTS, WIDE),
            (DEEP, WIDE),
            (DEEP, {**BASE, "tile_n": 8, "splits": 8}),
            (STRIDED, {**BASE, "splits": 8, "stages": 3}),
            (POINTS, {**BASE, "tile_n": 24, "splits": 8}),
            (replace(POINTS, dtype="bf16"), {**WIDE, "tile_n": 72, "splits": 4, "stages": 2}),
            (replace(POINTS, dtype="f32"), WIDE),
            (replace(DEEP, dtype="f32", epilogue="bias_silu"), {**BASE, "stages": 4}),
            (replace(DEEP, n=1, h=1, w=1), {**BASE, "tile_n": 8}),
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
        replace(DEEP, c=132),
        replace(DEEP, k=68),
        replace(DEEP, layout="nchw"),
        replace(DEEP, groups=8),
        replace(DEEP, stride_w=9),
    ],
)
def test_what_tma_does_not_copy_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


@pytest.mark.parametrize("arch", [80, 89, 100])
def test_no_other_architecture_is_offered_it(arch: int) -> None:
    assert not BoundTemplate(family(NAME), DEEP, replace(H200, arch=arch)).supported


@pytest.mark.parametrize("problem", [replace(DEEP, n=64, h=56, w=56), replace(POINTS, c=136)])
def test_layers_of_many_pixels_have_configs_too(problem: Conv2dProblem) -> None:
    """A kernel that was chosen for few images is called with many."""
    bound = BoundTemplate(family(NAME), problem, H200, Admission(prune=True))
    assert SearchSpace(bound).default is not None
    assert bound.searched == (problem.n < 64)


def test_layers_of_few_products_are_not_supported() -> None:
    assert not BoundTemplate(family(NAME), replace(POINTS, c=128), H200).supported


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "values", [{"tile_m": 128, "tile_n": 128, "splits": 2}, *long_run(({"tile_m": 64, "tile_n": 128, "splits": 8},))]
)
def test_the_largest_tiles_compile_without_spills_and_products_overlap(values: dict[str, int | str]) -> None:
    problem = replace(POINTS, n=8, c=2048, k=512, h=7, w=7)
    source = render(BoundTemplate(family(NAME), problem, H200), Config.of(NAME, {**BASE, "stages": 4, **values}))
    binary = compile_cubin(source.program, 90, find_nvcc())
    assert binary.resources.spill_bytes == 0
    assert not re.search(r"C7\d{3}", binary.log), binary.log


FAULTS = {
    "a block takes the next one's products, too": ("K_TILES * (rank + 1) / SPLITS;", "K_TILES * (rank + 2) / SPLITS;"),
    "the last products are left out": ("K_TILES * (rank + 1) / SPLITS;", "K_TILES / SPLITS * (rank + 1);"),
    "sums are read before the others have them": (
        "    cluster_sync();\n        if constexpr",
        "    __syncwarp();\n        if constexpr",
    ),
    "a block ends while others read its sums": (
        "    cluster_sync();  // the others have read",
        "    // the others have read",
    ),
    "sums lie where another warpgroup still reads": ("    sync_threads<128 * CONSUMERS>(CONSUMERS + 2);", ""),
    "the sums of one block are all that are added": (
        "load_cluster(mine + i * 128, other)",
        "load_cluster(mine + i * 128, rank)",
    ),
    "a block finishes the columns of another": (
        "Boxes::store(map, outputs + (share",
        "Boxes::store(map, outputs + (0 * share",
    ),
    "the producer does not wait": (
        "pipeline.producer_acquire(state, STAGE_BYTES);",
        "barrier_arrive_expect(pipeline.full + state.index, STAGE_BYTES);",
    ),
    "a stage is released while products read it": ("            wgmma_wait_group<1>();\n", ""),
    "outputs are stored without a fence": ("    fence_bulk();\n", ""),
    "channels of x are another's": ("x_map, full, c, pixel", "x_map, full, 0, pixel"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, DEEP, {**BASE, "tile_m": 128, "tile_n": 56, "splits": 2}, FAULTS[what], host)
