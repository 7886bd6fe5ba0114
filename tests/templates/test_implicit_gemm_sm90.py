"""Tiles, schedules and tails of `implicit_gemm_sm90`, and the mistakes in its pipeline that the host device finds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.compiled import host_device
from tests.long_run import every, long_run

from .shipped_families import H200, family, images_with_infinities, refuses_changed, rounds_to_nearest_tf32, verify

NAME = "implicit_gemm_sm90"
BASE: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 64,
    "schedule": "cooperative",
    "window_rows": 0,
    "folded": 1,
    "epilogue_subtiles": 1,
}
HALF = Conv2dProblem(3, 72, 9, 11, 72, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc", epilogue="bias_relu")
"""Two slices of channels per tap, the second of eight channels; two tiles of output channels; pixels of several images.
"""
BFLOAT = replace(HALF, n=2, c=16, k=184, r=1, s=5, pad_h=0, pad_w=4, dilation_w=2, dtype="bf16", epilogue="bias")
"""Products of a quarter of a stage; one row of dilated taps; three tiles of output channels."""
STRIDED = replace(
    HALF, n=4, c=64, k=64, h=15, w=12, r=5, s=2, stride_h=2, stride_w=3, pad_h=2, pad_w=0, epilogue="none"
)
POINTS = replace(HALF, n=5, c=192, k=128, r=1, s=1, pad_h=0, pad_w=0)
"""Rows of x as they are in memory."""
SKIPPED = replace(POINTS, n=9, stride_h=2, stride_w=2)
"""One tap, of some pixels only."""
SMALL = replace(POINTS, n=1, c=8, h=1, w=1, k=8)
"""Fewer pixels, channels and output channels than a tile has."""
FLOAT = replace(HALF, c=36, k=108, dtype="f32")
"""In TF32: two slices of channels per tap, the second of four; the last box of outputs exceeds the tensor."""
FLOAT_POINTS = replace(POINTS, c=96, dtype="f32")


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SKIPPED, {"tile_n": 240, "schedule": "pingpong", "epilogue_subtiles": 3}),
        (FLOAT, {"schedule": "pingpong", "tile_n": 104}),
        *long_run(
            (FLOAT_POINTS, {"tile_m": 128, "tile_n": 200, "epilogue_subtiles": 5}),
            (BFLOAT, {"tile_m": 192, "tile_n": 136}),
            (HALF, {}),
            (HALF, {"schedule": "pingpong", "tile_n": 104}),
            (FLOAT, {}),
            (replace(FLOAT, k=184), {"tile_m": 192, "tile_n": 136}),
            (replace(STRIDED, dtype="f32"), {"tile_n": 448, "epilogue_subtiles": 7}),
            (replace(SKIPPED, dtype="f32"), {"tile_n": 240, "schedule": "pingpong", "epilogue_subtiles": 3}),
            (replace(FLOAT_POINTS, n=1), {"tile_n": 24, "schedule": "pingpong"}),
            (replace(SMALL, c=4, k=4, dtype="f32"), {}),
            (replace(HALF, k=120), {"tile_m": 128, "tile_n": 80, "schedule": "pingpong", "epilogue_subtiles": 2}),
            (BFLOAT, {"tile_n": 288, "epilogue_subtiles": 6}),
            (STRIDED, {"tile_n": 448, "epilogue_subtiles": 4}),
            (POINTS, {"tile_m": 128, "tile_n": 200, "epilogue_subtiles": 5}),
            (POINTS, {"tile_m": 128, "tile_n": 104, "schedule": "pingpong"}),
            (POINTS, {"tile_n": 272}),
            (SMALL, {}),
            (replace(SKIPPED, n=1), {"tile_n": 24, "schedule": "pingpong", "epilogue_subtiles": 3}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


@pytest.mark.cxx
def test_256_output_channels_are_shared_by_two_warpgroups(host: DeviceEvaluator) -> None:
    problem = replace(POINTS, n=2, c=64, k=256)
    verify(NAME, problem, {**BASE, "tile_m": 256, "tile_n": 192, "epilogue_subtiles": 6}, host)


RESIDUALS: list[tuple[Conv2dProblem, dict[str, int | str]]] = [
    (replace(HALF, epilogue="bias_add_relu"), {}),
    (replace(HALF, epilogue="bias_add"), {"schedule": "pingpong", "tile_n": 104}),
    (replace(POINTS, epilogue="bias_add_relu"), {"tile_m": 128, "tile_n": 200, "epilogue_subtiles": 5}),
    (replace(POINTS, epilogue="bias_add_relu"), {"tile_m": 128, "tile_n": 104, "schedule": "pingpong"}),
    (replace(SKIPPED, epilogue="bias_add_relu"), {"tile_n": 240, "schedule": "pingpong", "epilogue_subtiles": 3}),
    (replace(FLOAT, epilogue="bias_add_relu"), {"tile_n": 40, "window_rows": 3, "schedule": "pingpong"}),
    (replace(FLOAT_POINTS, epilogue="bias_add"), {"tile_m": 128, "tile_n": 104, "schedule": "pingpong"}),
    (replace(HALF, epilogue="bias_add_relu"), {"tile_n": 40, "window_rows": 3, "schedule": "pingpong"}),
    (replace(BFLOAT, epilogue="bias_add"), {"tile_m": 192, "tile_n": 136}),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), [*RESIDUALS[-1:], *long_run(*RESIDUALS[:-1])])
def test_a_residual_is_added(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


@pytest.mark.parametrize("epilogue", ["bias_relu", "bias_add_relu"])
def test_a_kernel_takes_a_residual_where_the_layer_has_one(epilogue: str) -> None:
    bound = BoundTemplate(family(NAME), replace(HALF, epilogue=epilogue), H200)
    source = render(bound, Config.of(NAME, BASE))
    residual = epilogue == "bias_add_relu"
    assert ("z_map" in source.stages[0].args) == residual
    assert {each.name for each in source.tensor_maps} == {"x_map", "w_map", "y_map"} | (
        {"z_map"} if residual else set()
    )
    assert ("z_map" in source.program.text) == residual


APART = replace(HALF, pad_h=0, pad_w=0, dilation_h=2, dilation_w=3)
WINDOWS = [
    (FLOAT, {"tile_m": 128, "tile_n": 64, "window_rows": 5}),
    *long_run(
        (HALF, {"tile_n": 40, "window_rows": 3, "schedule": "pingpong"}),
        (BFLOAT, {"tile_m": 192, "tile_n": 48, "window_rows": 3}),
        (replace(HALF, k=128), {"tile_m": 128, "tile_n": 64, "window_rows": 5}),  # the last tile exceeds the image
        (replace(HALF, k=120, c=128), {"tile_m": 128, "tile_n": 64, "window_rows": 5, "schedule": "pingpong"}),
        (APART, {"tile_n": 24, "window_rows": 2, "schedule": "pingpong"}),
        (replace(HALF, r=2, s=4, pad_h=0, pad_w=2), {"tile_n": 56, "window_rows": 4, "schedule": "pingpong"}),
    ),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), WINDOWS)
def test_a_window_serves_all_taps(
    problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


WIDE = replace(HALF, n=2, h=16, w=21)
"""Three strips of eight columns: the third ends outside the image, as do rows of some tiles."""
STRIPS = [
    (FLOAT_WIDE := replace(FLOAT, n=2, h=7, w=15), {"tile_n": 56, "window_rows": 7, "schedule": "pingpong"}),
    *long_run(
        (replace(WIDE, epilogue="bias_add_relu"), {"tile_n": 64, "window_rows": 8, "epilogue_subtiles": 2}),
        (replace(WIDE, k=120), {"tile_m": 128, "tile_n": 64, "window_rows": 8}),
        (WIDE, {"tile_m": 64, "tile_n": 128, "window_rows": 16, "schedule": "pingpong", "epilogue_subtiles": 4}),
        (replace(WIDE, n=1, c=136, k=256), {"tile_m": 256, "tile_n": 64, "window_rows": 8, "epilogue_subtiles": 4}),
        (replace(WIDE, h=14, k=192), {"tile_m": 192, "tile_n": 56, "window_rows": 7}),
        (replace(WIDE, pad_h=0, pad_w=0, dilation_h=2, dilation_w=3), {"tile_n": 112, "window_rows": 14}),
        (replace(WIDE, r=1, s=7, pad_h=0, pad_w=3), {"tile_n": 64, "window_rows": 8, "schedule": "pingpong"}),
        (replace(WIDE, r=7, s=1, pad_h=3, pad_w=0), {"tile_n": 64, "window_rows": 8, "epilogue_subtiles": 4}),
        (replace(WIDE, c=128, k=128, groups=2), {"tile_n": 128, "window_rows": 16, "epilogue_subtiles": 8}),
        (replace(WIDE, c=48, k=96, groups=12), {"tile_n": 64, "window_rows": 8, "schedule": "pingpong"}),
        (replace(FLOAT_WIDE, h=16, epilogue="bias_add"), {"tile_n": 64, "window_rows": 8, "epilogue_subtiles": 4}),
    ),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), STRIPS)
def test_a_window_of_a_strip_serves_all_taps(
    problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


FEW = replace(WIDE, c=16, k=72)
"""Nine taps of a quarter of a stage: the last stage has one."""
JOINED_TAPS = [
    (replace(FEW, c=48), {"tile_n": 64, "window_rows": 8, "schedule": "pingpong"}),
    *long_run(
        (FEW, {"tile_n": 64, "window_rows": 8, "epilogue_subtiles": 2}),
        (replace(FEW, c=32, pad_h=0, pad_w=0, dilation_h=2, dilation_w=3), {"tile_n": 112, "window_rows": 14}),
        (replace(FLOAT_WIDE, c=24), {"tile_n": 56, "window_rows": 7, "schedule": "pingpong"}),
        (replace(HALF, n=5, h=7, w=7, c=16), {"tile_n": 128, "window_rows": 16, "schedule": "pingpong"}),
        (replace(WIDE, c=96, k=96, groups=12), {"tile_n": 64, "window_rows": 8}),
    ),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), JOINED_TAPS)
def test_taps_of_few_channels_share_a_stage_of_filters(
    problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


SMALL_IMAGES = replace(HALF, n=5, h=7, w=7, epilogue="bias_add_relu")
"""Rows and columns of padding between images; the last window has one image of two, three or four."""
IMAGES = [
    (SMALL_IMAGES, {"tile_n": 128, "window_rows": 16, "schedule": "pingpong"}),
    *long_run(
        (replace(SMALL_IMAGES, k=120), {"tile_m": 128, "tile_n": 192, "window_rows": 24}),
        (replace(SMALL_IMAGES, c=128, k=128, groups=8), {"tile_n": 256, "window_rows": 32, "schedule": "pingpong"}),
        (replace(FLOAT, n=3, h=8, w=8), {"tile_n": 168, "window_rows": 18, "schedule": "pingpong"}),
        (replace(SMALL_IMAGES, w=11), {"tile_n": 192, "window_rows": 16, "schedule": "pingpong"}),
        (
            replace(SMALL_IMAGES, h=9, w=9, pad_h=0, pad_w=1, r=1),
            {"tile_n": 184, "window_rows": 18, "schedule": "pingpong"},
        ),
    ),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), IMAGES)
def test_a_window_of_images_serves_all_taps(
    problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


PATCHED = replace(HALF, c=3, h=48, w=64, k=24, r=16, s=16, stride_h=16, stride_w=16, pad_h=0, pad_w=0)
"""Windows side by side: of three channels, rows of 48; steps that TMA does not support."""
PATCHES = [
    (PATCHED, {"tile_n": 24, "schedule": "pingpong"}),
    *long_run(
        (replace(PATCHED, n=2, c=2, h=12, k=20, r=1, s=4, stride_h=1, stride_w=4, dtype="f32"), {"tile_n": 32}),
        (replace(PATCHED, c=24, h=6, w=20, r=2, s=2, stride_h=2, stride_w=2, epilogue="bias_add_silu"), {}),
        (replace(PATCHED, c=3, h=32, w=32, k=72, r=4, s=8, stride_h=4, stride_w=8, dtype="bf16"), {"tile_n": 384}),
    ),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), PATCHES)
def test_windows_side_by_side_need_no_multiple_of_eight_channels(
    problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


OTHER_WINDOWS = [
    replace(PATCHED, h=49),
    replace(PATCHED, w=65),
    replace(PATCHED, pad_w=1),
    replace(PATCHED, stride_h=8),
    replace(PATCHED, s=15),
    replace(PATCHED, h=64, dilation_h=2),
]


@pytest.mark.parametrize("problem", OTHER_WINDOWS, ids=str)
def test_other_windows_of_three_channels_are_left_to_other_families(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


GROUPED = replace(HALF, c=128, k=128, groups=32)
"""Tiles of sixteen groups."""
GROUPS = [
    (replace(GROUPED, c=96, k=96, groups=4), {"tile_n": 40, "window_rows": 3, "schedule": "pingpong"}),
    *long_run(
        (GROUPED, {}),
        (replace(GROUPED, c=48, k=144, groups=6), {"tile_n": 104, "schedule": "pingpong"}),  # parts of groups
        (replace(GROUPED, c=256, k=256, groups=2, n=1), {"tile_m": 128}),  # the channels of a group are in one tile
        (replace(GROUPED, c=72, k=72, groups=9), {"tile_n": 104, "schedule": "pingpong"}),
        (replace(GROUPED, c=80, k=40, groups=5), {}),
        (replace(GROUPED, c=24, k=128, groups=2), {}),  # a filter's channels do not fill 16 bytes
        (replace(GROUPED, c=36, k=36, groups=3, dtype="f32"), {}),
        (replace(GROUPED, c=256, k=128, groups=2, n=1), {}),
        (replace(GROUPED, stride_h=2, stride_w=2, epilogue="bias_add_relu", dtype="bf16"), {"tile_n": 80}),
        (replace(GROUPED, c=64, k=64, groups=2, r=1, s=1, pad_h=0, pad_w=0), {}),
    ),
]


@pytest.mark.cxx
@pytest.mark.parametrize(("problem", "values"), GROUPS)
def test_groups_see_their_own_channels(
    problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify(NAME, problem, {**BASE, **values}, checked)


GROUP_FAULTS = {
    "filters are packed with another group's": ("c >= 0 && c < GROUP_C ?", "c >= 0 ?"),
    "inputs are of the first groups": ("first_channel(k) + c", "c"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(GROUP_FAULTS), GROUP_FAULTS))
def test_a_mistake_with_groups_is_found(what: str, host: DeviceEvaluator) -> None:
    assert found(BASE, *GROUP_FAULTS[what], host, GROUPED)


@pytest.mark.cxx
@pytest.mark.parametrize("problem", every(3, (replace(each, epilogue="none") for each in (HALF, POINTS, FLOAT))))
def test_an_infinity_stays_in_its_image(problem: Conv2dProblem) -> None:
    assert images_with_infinities(NAME, problem, BASE) == {1}


@pytest.mark.cxx
def test_floats_are_multiplied_as_the_nearest_tf32() -> None:
    device = host_device(str(find_cxx()))
    rounds_to_nearest_tf32(device, Config.of(NAME, BASE))
    device.close()


@pytest.mark.parametrize(
    "problem",
    [replace(HALF, c=60), replace(HALF, k=60), replace(FLOAT, c=34), replace(FLOAT, k=106), replace(HALF, groups=36)],
)
def test_what_tma_cannot_copy_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


@pytest.mark.parametrize("arch", [80, 89, 100])
def test_no_other_architecture_is_offered_it(arch: int) -> None:
    assert not BoundTemplate(family(NAME), HALF, replace(H200, arch=arch)).supported


@pytest.mark.parametrize(
    "problem",
    [
        replace(HALF, n=64, c=c, h=size, w=size, k=k, r=r, s=r, pad_h=r // 2, pad_w=r // 2)
        for c, size, k, r in [(64, 56, 64, 3), (2048, 7, 512, 1), (512, 7, 512, 3), (256, 56, 512, 1)]
    ],
)
def test_accumulators_and_staged_outputs_never_exceed_a_multiprocessor(problem: Conv2dProblem) -> None:
    bound = BoundTemplate(family(NAME), problem, H200)
    space = SearchSpace(bound)
    for row in range(0, len(space.rows), 7):
        source = render(bound, space.config(row))
        (stage,) = source.stages
        assert stage.smem_bytes <= H200.smem_per_block_bytes
        names = bound.check(space.config(row))
        consumers = int(names["consumers"])
        registers = int(names["producer_registers"]) + consumers * int(names["consumer_registers"])
        assert 128 * registers <= H200.registers_per_sm
        assert consumers * 128 + 128 == stage.block[0]


LARGEST: list[dict[str, int | str]] = [
    {"tile_m": 128, "tile_n": 208, "schedule": "pingpong", "epilogue_subtiles": 2},
    {"tile_m": 64, "tile_n": 256, "schedule": "pingpong", "epilogue_subtiles": 1},
    {"tile_m": 128, "tile_n": 256, "schedule": "cooperative", "epilogue_subtiles": 4},
    {"tile_m": 256, "tile_n": 208, "schedule": "cooperative", "epilogue_subtiles": 2},
    {"tile_m": 64, "tile_n": 448, "schedule": "cooperative", "epilogue_subtiles": 4},
    {"tile_m": 192, "tile_n": 200, "schedule": "cooperative", "epilogue_subtiles": 5},
]
"""The most accumulators for each way to share a tile."""
LARGEST_FLOAT: list[dict[str, int | str]] = [
    {"tile_m": 128, "tile_n": 200, "schedule": "pingpong", "epilogue_subtiles": 5},
    {"tile_m": 64, "tile_n": 256, "schedule": "pingpong", "epilogue_subtiles": 4},
    {"tile_m": 128, "tile_n": 256, "schedule": "cooperative", "epilogue_subtiles": 4},
    {"tile_m": 256, "tile_n": 200, "schedule": "cooperative", "epilogue_subtiles": 5},
    {"tile_m": 64, "tile_n": 448, "schedule": "cooperative", "epilogue_subtiles": 7},
    {"tile_m": 192, "tile_n": 200, "schedule": "cooperative", "epilogue_subtiles": 5},
]
"""Next to staged outputs of twice as many bytes."""


LARGEST_KERNELS = [
    (dtype, values, epilogue)
    for pair in zip(LARGEST, LARGEST_FLOAT, strict=True)
    for dtype, values in zip(("f16", "f32"), pair, strict=True)
    for epilogue in ("bias_relu", "bias_add_relu")
]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("dtype", "values", "epilogue"),
    [*LARGEST_KERNELS[::5], *long_run(*(each for at, each in enumerate(LARGEST_KERNELS) if at % 5))],
)
def test_the_largest_tiles_compile_without_spills_and_products_overlap(
    dtype: str, values: dict[str, int | str], epilogue: str
) -> None:
    problem = replace(HALF, c=64, k=768, dtype=dtype, epilogue=epilogue)
    source = render(BoundTemplate(family(NAME), problem, H200), Config.of(NAME, {**BASE, **values}))
    binary = compile_cubin(source.program, 90, find_nvcc())
    assert binary.resources.spill_bytes == 0
    assert not re.search(r"C7\d{3}", binary.log), binary.log


FAULTS = {
    "consumers do not wait": ("pipeline.consumer_wait(state);", ""),
    "the producer does not wait": ("barrier_wait(empty + state.index, state.phase ^ 1);", ""),
    "the producer waits for the wrong phase": ("state.phase ^ 1);", "state.phase);"),
    "consumers wait for the wrong phase": (
        "(full + state.index, state.phase);",
        "(full + state.index, state.phase ^ 1);",
    ),
    "a stage is released while products read it": ("wgmma_wait_group<1>();", "wgmma_wait_group<2>();"),
    "sums are read before products are done": ("        wgmma_wait(d);\n", ""),
    "fewer bytes are announced than arrive": ("full + state.index, bytes);", "full + state.index, bytes - 128);"),
    "outputs are stored without a fence": (
        "        fence_bulk();\n        sync_threads<128>",
        "        sync_threads<128>",
    ),
    "outputs are stored before all are staged": (
        "fence_bulk();\n        sync_threads<128>",
        "fence_bulk(); //",
    ),
    "outputs are staged where a store reads": ("wait_read<STAGES - 1>();", "wait_read<STAGES>();"),
    "outputs are staged without the swizzle": (") ^ lane % 8 / SWIZZLED) * 16;", ")) * 16;"),
    "a product reads other channels": ("a + (a_at + i * ROWS_STEP)", "a + (at + i * ROWS_STEP)"),
    "a product reads another stage": ("b + b_at,", "b + (b_at - at),"),
    "rows and columns of taps change places": ("tap % S * DILATION_W, tap / S", "tap / S * DILATION_W, tap % S"),
    "windows begin without the padding": ("* STRIDE_W - PAD_W", "* STRIDE_W"),
}
FAULTY = replace(HALF, n=4, w=19, k=64)
"""More stages than a pipeline has, more tiles than blocks, two parts of an epilogue."""


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(8, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 96, "epilogue_subtiles": 3}
    assert found(values, *FAULTS[what], host)


WINDOW_FAULTS = {
    "consumers do not wait for a window": ("if (window.tap == 0) windows.consumer_wait(window);", ""),
    "a window is never given back": ("        if (lane == 0) windows.consumer_release(window.last);\n", ""),
    "what follows the last row is not zero": ("+ LOADED * PIXEL_BYTES);", "+ LOADED * PIXEL_BYTES + 1024);"),
    "taps of the next row begin one pixel late": ("TAP_STEP_H * PITCH", "(TAP_STEP_H * PITCH + 1)"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(4, WINDOW_FAULTS))
def test_a_mistake_with_windows_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 64, "window_rows": 3, "schedule": "pingpong"}
    assert found(values, *WINDOW_FAULTS[what], host)


FLOAT_FAULTS = {
    "outputs are staged without the swizzle": ("(channel / 4 ^ pixel) * 16", "channel / 4 * 16"),
    "both halves of the outputs go to one box": ("warp / 2 * (PIXELS * 128) +", ""),
    "the second box is stored where the first is": ("channel + box * BOX_CHANNELS", "channel"),
    "the first box is stored twice": ("Boxes::store(map, to + box * BOX_BYTES", "Boxes::store(map, to"),
    "the second box of a residual is the first": ("* 64 + box * BOX_CHANNELS, column", "* 64, column"),
    "a residual is read without the swizzle": (
        "z[i] = *reinterpret_cast<const float*>(words[i] +",
        "z[i] = *reinterpret_cast<const float*>(words[0] +",
    ),
    "outputs are stored without a fence": (
        "        fence_bulk();\n        sync_threads<128>",
        "        sync_threads<128>",
    ),
    "a product reads other channels": ("a + (a_at + i * ROWS_STEP)", "a + (at + i * ROWS_STEP)"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(8, FLOAT_FAULTS))
def test_a_mistake_of_tf32_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 96, "epilogue_subtiles": 3}
    assert found(values, *FLOAT_FAULTS[what], host, replace(FAULTY, dtype="f32", epilogue="bias_add_relu"))


@pytest.mark.cxx
def test_warpgroups_that_do_not_take_turns_are_found(host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 96, "schedule": "pingpong"}
    assert found(values, "mainloop_order.wait(consumer, order_phase);", "", host)


RESIDUAL_FAULTS = {
    "a residual is read before it came": ("                barrier_wait(full + state.index, state.phase);\n", ""),
    "consumers wait for a residual's wrong phase": (
        "                barrier_wait(full + state.index, state.phase);",
        "                barrier_wait(full + state.index, state.phase ^ 1);",
    ),
    "a residual comes where a store reads": ("                    bulk_store_wait_read<0>();\n", ""),
    "a residual comes where the tile before is stored": (
        "        bulk_store_wait_read<0>();  // the outputs",
        "            // the",
    ),
    "fewer bytes of a residual are announced": (
        "(full + stage, RESIDUAL_BYTES);",
        "(full + stage, 128);",
    ),
    "a residual is of the next subtile": (
        "further = i % SUBTILES * COLUMNS",
        "further = (i + 1) % SUBTILES * COLUMNS",
    ),
    "a residual is read without the swizzle": (
        "load_matrices_trans(z, column + tile",
        "load_matrices_trans(z, to + (lane / 16 * 8 + lane % 8) * 128 + (warp * 2 + lane / 8 % 2) * 16 + tile",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(RESIDUAL_FAULTS), RESIDUAL_FAULTS))
def test_a_mistake_with_a_residual_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 96, "epilogue_subtiles": 3}
    assert found(values, *RESIDUAL_FAULTS[what], host, replace(FAULTY, epilogue="bias_add_relu"))


STRIP_FAULTS = {
    "rows of a window follow each other": (
        "(FOLDED * PITCH * PIXEL_BYTES), FOLDED * PITCH * PIXEL_BYTES)",
        "(FOLDED * PITCH * PIXEL_BYTES), 1024)",
    ),
    "warpgroups read the same rows": ("window + first / 8 * (FOLDED * PITCH * PIXEL_BYTES)", "window"),
    "warpgroups store the same rows": ("WINDOW_ROWS + Boxes::rows(first)", "WINDOW_ROWS"),
    "subtiles are stored in the same rows": ("STRIP ? pixels / 8 : 0", "STRIP ? pixels / 64 * 8 : 0"),
    "strips begin where the first does": ("{tile % STRIPS * 8,", "{0,"),
    "a window begins without padding": ("at.column - PAD_W", "at.column"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(STRIP_FAULTS), STRIP_FAULTS))
def test_a_mistake_with_strips_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 64, "window_rows": 8, "epilogue_subtiles": 2}
    assert found(values, *STRIP_FAULTS[what], host, replace(WIDE, epilogue="bias_add_relu"))


IMAGES_FAULTS = {
    "no zeros behind the last image": ("PAD_H * PITCH + PAD_W : PAD_W", "PAD_W : PAD_W"),
    "windows begin with every image": ("IMAGE_TILES * WINDOW_IMAGES}", "IMAGE_TILES}"),
    "images without a window": ("(n * O + WINDOW_IMAGES - 1) / WINDOW_IMAGES", "n * O / WINDOW_IMAGES"),
    "more of a window is announced than comes": ("(IMAGES ? WINDOW_ROWS : FOLDED", "(FOLDED"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(IMAGES_FAULTS), IMAGES_FAULTS))
def test_a_mistake_with_images_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    values = {**BASE, "tile_n": 128, "window_rows": 16, "schedule": "pingpong"}
    assert found(values, *IMAGES_FAULTS[what], host, SMALL_IMAGES)


def found(
    values: dict[str, int | str], old: str, new: str, host: DeviceEvaluator, problem: Conv2dProblem = FAULTY
) -> bool:
    """Whether the host device rejects the kernel with one of its lines changed."""
    return refuses_changed(NAME, problem, values, (old, new), host)
