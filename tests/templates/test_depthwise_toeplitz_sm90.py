"""Tiles of `depthwise_toeplitz_sm90` whose edges lie within images, rows and channels, and faults planted in it."""

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
from .toeplitz_layers import IMAGES, NOT_SUPPORTED, ODD

NAME = "depthwise_toeplitz_sm90"
Values = dict[str, int | str]
BASE: Values = {
    "tile_c": 16,
    "warp_c": 4,
    "images": 2,
    "row_tiles": 2,
    "step_p": 1,
    "warps_m": 1,
    "epilogue_stages": 2,
    "min_blocks": 1,
}
WIDE = replace(ODD, n=1, c=8, k=8, groups=8, h=9, w=140, r=3, s=9, pad_h=0, pad_w=1, epilogue="bias")
"""MMAs of two warps, of the widest filter, of one image."""
APART = replace(ODD, n=4, c=40, k=40, groups=40, h=12, r=2, s=3, pad_h=5, pad_w=4, dilation_w=4)
"""Outputs that read only padding, dilated taps, an even number of filter rows."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (ODD, {}),
        (IMAGES, {"images": 4, "warp_c": 2, "row_tiles": 1, "tile_c": 8}),
        *long_run(
            (IMAGES, {"images": 4, "row_tiles": 2, "step_p": 2}),
            (replace(IMAGES, n=16), {"images": 16, "row_tiles": 1, "step_p": 4}),
            (WIDE, {"tile_c": 8, "images": 1, "row_tiles": 1, "warps_m": 2}),
            (APART, {"tile_c": 64, "images": 4, "row_tiles": 3}),
            (APART, {"tile_c": 32, "warp_c": 2, "images": 4, "row_tiles": 1}),
            (ODD, {"tile_c": 32, "row_tiles": 3, "step_p": 2}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: Values, checked: DeviceEvaluator) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


@pytest.mark.cxx
def test_an_infinity_stays_in_its_image() -> None:
    problem = replace(IMAGES, dtype="f16")
    assert images_with_infinities(NAME, problem, {**BASE, "images": 4, "row_tiles": 1}) == {1}


@pytest.mark.parametrize("problem", [*NOT_SUPPORTED, replace(ODD, w=300)])
def test_what_toeplitz_matrices_do_not_hold_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


CONVNEXT = replace(ODD, n=64, c=96, k=96, h=56, w=56, groups=96, epilogue="bias")
LAYERS = {
    "convnext 1": CONVNEXT,
    "convnext 2": replace(CONVNEXT, c=192, k=192, h=28, w=28, groups=192),
    "convnext 4": replace(CONVNEXT, c=768, k=768, h=7, w=7, groups=768),
    "convnext 1, one image": replace(CONVNEXT, n=1),
    "5x5": replace(CONVNEXT, c=240, k=240, groups=240, h=28, w=28, r=5, s=5, pad_h=2, pad_w=2, epilogue="bias_silu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks_have_configs_and_all_fit_a_multiprocessor(name: str) -> None:
    bound = BoundTemplate(family(NAME), LAYERS[name], H200, Admission(prune=True))
    space = SearchSpace(bound)
    assert len(space.rows) > 50
    for row in range(0, len(space.rows), 3):
        names = {key: int(value) for key, value in bound.check(space.config(row)).items() if isinstance(value, int)}
        blocks, warps = names["min_blocks"], names["warps"]
        assert (names["smem_bytes"] + 1024) * blocks <= H200.smem_per_block_bytes + 1024
        assert 32 * blocks * (4 * 24 + warps * names["consumer_registers"]) <= 65536


def test_words_of_filters_beyond_31_bits_are_refused() -> None:
    most = 2**31 // (7 * 64) // 64 * 64
    for c, there in ((most - 64, True), (most + 64, False)):
        layer = replace(CONVNEXT, n=2, c=c, k=c, groups=c, h=8, w=8, pad_h=3, s=9, pad_w=4)
        assert (len(SearchSpace(BoundTemplate(family(NAME), layer, H200)).rows) > 0) == there


LARGEST: list[tuple[str, Values]] = [
    ("convnext 1", {}),
    ("convnext 1", {"tile_c": 16, "warp_c": 2, "step_p": 1}),
    ("convnext 2", {"tile_c": 16, "images": 4, "min_blocks": 2}),
    ("5x5", {"tile_c": 16, "images": 8, "warps_m": 2, "step_p": 4}),
]
"""Accumulators that take all available registers."""


@pytest.mark.nvcc
@pytest.mark.parametrize(("name", "values"), [*LARGEST[:1], *long_run(*LARGEST[1:])])
def test_the_largest_tiles_compile_without_spills(name: str, values: Values) -> None:
    tile = {**BASE, "tile_c": 32, "row_tiles": 1, "step_p": 2, **values}
    source = render(BoundTemplate(family(NAME), LAYERS[name], H200), Config.of(NAME, tile))
    assert compile_cubin(source.program, 90, find_nvcc()).resources.spill_bytes == 0


FAULTS: dict[str, tuple[str, str]] = {
    "a row is read before it has come": ("                    pipeline.consumer_wait(state);\n", ""),
    "the swizzle is that of other pixels": ("pixel * CHUNKS / 8 % CHUNKS", "(pixel + 4) * CHUNKS / 8 % CHUNKS"),
    "rows begin without the padding": ("* BLOCK_P - PAD_H, image", "* BLOCK_P, image"),
    "columns begin without the padding": (", 0 - PAD_W,", ", 0,"),
    "filter rows change places": ("filters[c][R - 1 - r]", "filters[c][r]"),
    "accumulators stay where they are": ("d[i][c][(r + 1) % R]", "d[i][c][r]"),
    "columns of a word are neighbours": ("tap(first + 4)", "tap(first + 1)"),
    "outputs are stored without a fence": ("        fence_bulk();\n", ""),
    "outputs are staged where a store reads": ("                    bulk_store_wait_read<0>();\n", ""),
    "a stage is released twice": (
        "outputs.consumer_wait(finished);  // and so all have read the stage\n",
        "pipeline.consumer_release(state.index);\n                outputs.consumer_wait(finished);\n",
    ),
    "a tile's last rows are the next one's": ("FIRST_STEP + BLOCK_P / STEP_P;", "BLOCK_P / STEP_P;"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, checked: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, ODD, {**BASE, "row_tiles": 1}, FAULTS[what], checked)
