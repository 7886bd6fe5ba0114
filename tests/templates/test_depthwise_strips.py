"""Tiles of `depthwise_strips` whose edges lie within images, strips and segments, and faults planted in it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.long_run import every, long_run

from .shipped_families import H200, family, images_with_infinities, refuses_changed, verify
from .toeplitz_layers import IMAGES, NOT_SUPPORTED, ODD

NAME = "depthwise_strips"
Values = dict[str, int | str]
BASE: Values = {"tile_c": 16, "warp_c": 4, "images": 2, "row_tiles": 2, "smem_filter_rows": 1, "min_blocks": 2}
WHOLE = replace(IMAGES, n=9, c=32, k=32, groups=32, h=8, w=14, dtype="f16", epilogue="bias_relu")
"""Eight images a tile, each a strip of one segment."""
WIDE = replace(ODD, n=1, c=8, k=8, groups=8, h=9, w=140, r=3, s=9, pad_h=0, pad_w=1, epilogue="bias")
"""The widest filter, of one image: segments of eight columns, strips without a row."""
APART = replace(ODD, n=4, c=40, k=40, groups=40, h=12, w=22, r=2, s=3, pad_h=5, pad_w=4, dilation_w=4)
"""Outputs that read only padding, dilated taps, an even number of filter rows."""


def tile_of(problem: Conv2dProblem, values: Values, device: DeviceInfo = H200) -> Values:
    """The tile with these values whose number of resident blocks satisfies the family's rules."""
    bound = BoundTemplate(family(NAME), problem, device, Admission(prune=True))
    for min_blocks in range(1, 7):
        tile = {**BASE, **values, "min_blocks": min_blocks}
        try:
            bound.check(Config.of(NAME, tile))
        except Rejected:
            continue
        return tile
    return {**BASE, **values}  # the message says why not


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (ODD, {}),
        (WHOLE, {"images": 8, "row_tiles": 1, "tile_c": 32, "smem_filter_rows": 2}),
        *long_run(
            (ODD, {"warp_c": 2, "smem_filter_rows": 6}),
            (IMAGES, {"images": 4, "row_tiles": 1}),
            (WHOLE, {"images": 8, "row_tiles": 1, "tile_c": 32, "warp_c": 2, "smem_filter_rows": 0}),
            (replace(WHOLE, w=28), {"images": 8, "row_tiles": 1}),
            (replace(WHOLE, w=16), {"images": 4, "row_tiles": 1, "warp_c": 2}),
            (WIDE, {"tile_c": 8, "images": 1, "row_tiles": 1, "smem_filter_rows": 0}),
            (APART, {"tile_c": 64, "images": 4, "row_tiles": 1}),
            (replace(APART, c=24, k=24, groups=24, h=6), {"warp_c": 2, "images": 4, "row_tiles": 3}),
            (replace(ODD, r=1, s=5, pad_h=0), {"smem_filter_rows": 0}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: Values, checked: DeviceEvaluator) -> None:
    verify(NAME, problem, tile_of(problem, values, checked.info), checked)


@pytest.mark.cxx
def test_an_infinity_stays_in_its_image() -> None:
    problem = replace(IMAGES, dtype="f16")
    assert images_with_infinities(NAME, problem, tile_of(problem, {"images": 4, "row_tiles": 1})) == {1}


@pytest.mark.parametrize("problem", NOT_SUPPORTED)
def test_what_toeplitz_matrices_do_not_hold_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


CONVNEXT = replace(ODD, n=64, c=384, k=384, h=14, w=14, groups=384, epilogue="bias")
LAYERS = {
    "7x7": CONVNEXT,
    "7x7, one image": replace(CONVNEXT, n=1),
    "5x5": replace(CONVNEXT, c=240, k=240, groups=240, h=28, w=28, r=5, s=5, pad_h=2, pad_w=2, epilogue="bias_silu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks_have_configs_and_all_fit_a_multiprocessor(name: str) -> None:
    bound = BoundTemplate(family(NAME), LAYERS[name], H200, Admission(prune=True))
    space = SearchSpace(bound)
    assert len(space.rows) > 15
    for row in range(0, len(space.rows), 3):
        names = {key: int(value) for key, value in bound.check(space.config(row)).items() if isinstance(value, int)}
        assert (names["smem_bytes"] + 1024) * names["min_blocks"] <= H200.smem_per_block_bytes + 1024


WINNERS: list[tuple[Conv2dProblem, Values]] = [
    (CONVNEXT, {"tile_c": 32, "smem_filter_rows": 0, "min_blocks": 1}),
    (LAYERS["5x5"], {"tile_c": 32, "smem_filter_rows": 0, "min_blocks": 1}),
    (replace(LAYERS["5x5"], c=672, k=672, groups=672, h=14, w=14), {"smem_filter_rows": 2, "min_blocks": 3}),
]
"""The fastest of about a hundred tiles on an H100."""


@pytest.mark.parametrize(("problem", "fastest"), WINNERS, ids=["7x7", "5x5 of 28", "5x5 of 14"])
def test_a_search_of_few_trials_has_the_fastest_tile_among_its_own(problem: Conv2dProblem, fastest: Values) -> None:
    space = SearchSpace(BoundTemplate(family(NAME), problem, H200, Admission(prune=True)))
    assert len(space.rows) <= 40
    tile = Config.of(NAME, {**BASE, "images": 8, "row_tiles": 1, **fastest})
    assert tile in [space.config(row) for row in range(len(space.rows))]


@pytest.mark.parametrize(
    ("problem", "searched"),
    [
        (CONVNEXT, True),
        (replace(CONVNEXT, h=56, w=56), True),
        (replace(CONVNEXT, h=28, w=28), False),
        (replace(CONVNEXT, h=7, w=7), False),
        (LAYERS["5x5"], True),
        (replace(LAYERS["5x5"], h=14, w=14), True),
        (replace(CONVNEXT, r=3, s=3, pad_h=1, pad_w=1), False),
        (replace(CONVNEXT, r=21, s=9, pad_h=10, pad_w=4), False),
    ],
    ids=["14 columns", "56", "28", "7", "5x5 of 28", "5x5 of 14", "3x3", "21 rows of filters"],
)
def test_it_is_searched_where_its_matrices_are_filled(problem: Conv2dProblem, *, searched: bool) -> None:
    bound = BoundTemplate(family(NAME), problem, H200, Admission(prune=True))
    assert (bound.searched and len(SearchSpace(bound).rows) > 0) == searched


LARGEST: list[tuple[str, Values]] = [
    ("5x5", {}),
    ("7x7", {"tile_c": 32, "smem_filter_rows": 0}),
    ("5x5", {"tile_c": 32, "smem_filter_rows": 0}),
    ("5x5", {"warp_c": 2, "smem_filter_rows": 0}),
]
"""Filters and rows of x that take all available registers."""


@pytest.mark.nvcc
@pytest.mark.parametrize(("name", "values"), [*LARGEST[:1], *long_run(*LARGEST[1:])])
def test_the_largest_tiles_compile_without_spills(name: str, values: Values) -> None:
    tile = tile_of(LAYERS[name], {"images": 8, "row_tiles": 1, "smem_filter_rows": 2, **values})
    source = render(BoundTemplate(family(NAME), LAYERS[name], H200), Config.of(NAME, tile))
    assert compile_cubin(source.program, 90, find_nvcc()).resources.spill_bytes == 0


@pytest.mark.nvcc
def test_steps_between_rows_of_very_many_pixels_do_not_overflow(tmp_path: Path) -> None:
    """This needs no GPU: nvcc warns of constants that wrap."""
    wide = replace(ODD, n=1, c=8, k=8, groups=8, h=7, w=37_000_000, r=9, s=5, pad_h=4, pad_w=2)
    bound = BoundTemplate(family(NAME), wide, H200, Admission(prune=True))
    kernel = tmp_path / "wide.cu"
    kernel.write_text(render(bound, SearchSpace(bound).config(0)).program.text)
    line = [str(find_nvcc()), "-std=c++17", "-arch=sm_90", "-cubin", "-o", str(tmp_path / "wide.cubin"), str(kernel)]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stderr == ""


STAGED = "stage_outputs"
FAULTS: dict[str, tuple[str, str]] = {
    "a row is read before it has come": ("        copy_async_wait<STAGES - 2>();\n", ""),
    "a row is read a step too early": ("copy_async_wait<STAGES - 2>", "copy_async_wait<STAGES - 1>"),
    "a row is copied over one that others read": ("(stage + STAGES - 1) % STAGES", "stage"),
    "rows begin without the padding": ("first_h = first_p - PAD_H", "first_h = first_p"),
    "a segment begins without the padding": ("first_q - PAD_W;", "first_q;"),
    "a segment begins too late": ("(segment - 1) * STEP_Q", "segment * STEP_Q"),
    "filter rows change places": ("filters[c][r];", "filters[c][R - SMEM_FILTER_ROWS - 1 - r];"),
    "the oldest row is the newest": ("inputs[(i + r) % R]", "inputs[(i + R - 1 - r) % R]"),
    "halves of a column are not exchanged back": ("WARP_C == 4 && i == 1 ?", "false ?"),
    "outputs are staged where a store reads": (f"{STAGED}(odd);\n            mul", f"{STAGED}(even);\n            mul"),
    "rows below the image are stored": ("min(BLOCK_P, P - first_p - apart)", "BLOCK_P"),
    "words of a shared filter are those of other lanes": ("Pair pair = own_filters[", "Pair pair = own_filters[1 + "),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, checked: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, ODD, BASE, FAULTS[what], checked)
