"""Blocks of channels, rows and tails of `grouped_sm90`, and the mistakes that the host device finds in it."""

from __future__ import annotations

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

NAME = "grouped_sm90"
BASE: dict[str, int | str] = {"images": 2, "block_p": 2, "warps_q": 1, "min_blocks": 1}
FOURS = Conv2dProblem(
    *(3, 72, 13, 11, 72, 3, 3), pad_h=1, pad_w=1, groups=18, dtype="f16", layout="nhwc", epilogue="bias_relu"
)
"""Two groups per MMA; two tiles of 40 channels, 72 in all; a tile with an image and an output row that do not exist."""
SIXTEENS = replace(FOURS, c=48, k=48, groups=3, stride_h=2, stride_w=2, dtype="bf16", epilogue="bias_add_relu")
"""One group per MMA; rows that meet one row of the filter, and rows that meet two; a residual."""
THIRTIES = replace(SIXTEENS, c=96, k=96, r=2, s=4, pad_w=2, dilation_h=2, dilation_w=2, dtype="f16", epilogue="bias")
"""Two slices in depth; dilated taps; half a tile of channels."""
EIGHTS = replace(FOURS, n=2, h=7, c=120, k=120, groups=5)
"""Groups of 24, in three slices in depth; tiles of two groups, the last of one."""
ONES = replace(FOURS, n=2, c=24, k=24, groups=24, r=7, s=7, pad_h=3, pad_w=3, epilogue="none")
"""Depthwise; more rows are open than a tile has."""
PADDED = replace(ONES, n=1, groups=3, h=5, w=9, r=5, s=2, pad_h=6, pad_w=3, stride_w=3, epilogue="bias")
"""Rows above and below the image that are only padding; groups of eight."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FOURS, BASE),
        (SIXTEENS, {**BASE, "images": 3, "warps_q": 2}),
        (EIGHTS, BASE),
        *long_run(
            (FOURS, {**BASE, "images": 1, "block_p": 7, "min_blocks": 2}),
            (SIXTEENS, {**BASE, "images": 1, "block_p": 7}),
            (THIRTIES, {**BASE, "images": 3}),
            (THIRTIES, {**BASE, "images": 1, "block_p": 1}),
            (replace(EIGHTS, groups=3, stride_h=2), {**BASE, "images": 1, "block_p": 7}),
            (ONES, BASE),
            (replace(ONES, dtype="bf16"), {**BASE, "block_p": 14, "min_blocks": 3}),
            (PADDED, {**BASE, "images": 1, "block_p": 3}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "problem", [replace(ONES, r=5, s=5), *long_run((replace(SIXTEENS, dtype="f16", epilogue="none"),))]
)
def test_an_infinity_stays_in_its_image(problem: Conv2dProblem) -> None:
    assert images_with_infinities(NAME, problem, {**BASE, "images": problem.n}) == {1}


@pytest.mark.parametrize(
    "problem",
    [
        replace(FOURS, layout="nchw"),
        replace(FOURS, dtype="f32"),
        replace(FOURS, groups=1),
        replace(FOURS, groups=6),
        replace(FOURS, c=192, k=192, groups=3),
        replace(FOURS, k=144),
        replace(FOURS, c=12, k=12, groups=3),
        replace(FOURS, stride_h=4),
        replace(FOURS, w=300),
    ],
)
def test_what_blocks_of_channels_do_not_hold_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


RESNEXT = replace(FOURS, n=64, c=128, k=128, h=56, w=56, groups=32)
LAYERS = {
    "resnext 1": RESNEXT,
    "resnext 2, stride 2": replace(RESNEXT, c=256, k=256, stride_h=2, stride_w=2),
    "resnext 3, stride 2": replace(RESNEXT, c=512, k=512, h=28, w=28, stride_h=2, stride_w=2),
    "resnext 4": replace(RESNEXT, c=1024, k=1024, h=7, w=7),
    "resnext 1, one image": replace(RESNEXT, n=1),
    "regnet 3": replace(RESNEXT, n=32, c=336, k=336, h=14, w=14, groups=14),
    "depthwise 5x5": replace(RESNEXT, c=240, k=240, groups=240, h=28, w=28, r=5, s=5, pad_h=2, pad_w=2),
    "depthwise 7x7": replace(RESNEXT, c=96, k=96, groups=96, r=7, s=7, pad_h=3, pad_w=3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks_have_configs_and_all_fit_a_multiprocessor(name: str) -> None:
    bound = BoundTemplate(family(NAME), LAYERS[name], H200, Admission(prune=True))
    space = SearchSpace(bound)
    assert len(space.rows) > 10
    for row in range(0, len(space.rows), 3):
        names = bound.check(space.config(row))
        assert (int(names["smem_bytes"]) + 1024) * int(names["min_blocks"]) <= H200.smem_per_block_bytes + 1024


LARGEST: list[tuple[str, dict[str, int | str]]] = [
    ("resnext 2, stride 2", {"block_p": 4, "warps_q": 2, "min_blocks": 2}),
    ("resnext 1", {"block_p": 8}),
    ("resnext 4", {"images": 4, "block_p": 7}),
    ("regnet 3", {"images": 6, "min_blocks": 2}),
    ("depthwise 7x7", {"images": 1, "block_p": 7}),
    ("depthwise 5x5", {"images": 2, "block_p": 7}),
]
"""As many registers as accumulators may use."""


@pytest.mark.nvcc
@pytest.mark.parametrize(("name", "values"), [*LARGEST[:1], *long_run(*LARGEST[1:])])
def test_the_largest_tiles_compile_without_spills(name: str, values: dict[str, int | str]) -> None:
    source = render(BoundTemplate(family(NAME), LAYERS[name], H200), Config.of(NAME, {**BASE, **values}))
    assert compile_cubin(source.program, 90, find_nvcc()).resources.spill_bytes == 0


FAULTS = {
    "a row is loaded for the wrong phase": ("state.phase ^ 1);", "state.phase);"),
    "a row is read before it has come": ("pipeline.consumer_wait(state);", ""),
    "rows begin without the padding": ("* STRIDE_H) - PAD_H", "* STRIDE_H)"),
    "columns begin without the padding": (", 0 - PAD_W,", ", 0,"),
    "the swizzle is that of the row before": ("(chunk ^ row % 8) * 16", "(chunk ^ (row + 1) % 8) * 16"),
    "a column is a pixel's, whatever the stride": ("pixel % Q * STRIDE_W", "pixel % Q"),
    "filter rows change places": (
        "filters[(r * S + s) * SLICES + slice]",
        "filters[((R - 1 - r) * S + s) * SLICES + slice]",
    ),
    "outputs are stored without a fence": (
        "            fence_bulk();\n            __syncthreads();",
        "            __syncthreads();",
    ),
    "outputs are staged where a store reads": (
        "bulk_store_wait_read<1>();\n            __syncthreads();",
        "__syncthreads();",
    ),
    "a residual is the next image's": ("image + pixel / Q, z_row", "image + 1 + pixel / Q, z_row"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, checked: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, SIXTEENS, {**BASE, "images": 1, "block_p": 1}, FAULTS[what], checked)


@pytest.mark.cxx
def test_filters_of_another_group_are_found_without_a_gpu(host: DeviceEvaluator) -> None:
    change = ("c < C && c / GROUP_C == k / GROUP_C", "c < C")
    assert refuses_changed(NAME, FOURS, BASE, change, host)
