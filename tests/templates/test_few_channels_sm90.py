"""Windows, filters and tails of `few_channels_sm90`, and the mistakes in its pipeline that the host device finds."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.compiled import host_device
from tests.long_run import every, long_run

from .shipped_families import H200, family, images_with_infinities, output_bytes, refuses_changed, verify

NAME = "few_channels_sm90"
BASE: dict[str, int | str] = {
    "column_tiles": 1,
    "window_rows": 2,
    "filters": "registers",
    "stages": 2,
    "epilogue_stages": 1,
    "register_prefetch": 2,
    "producers": 1,
    "channels": "all",
}
SHARED = {**BASE, "filters": "shared"}
RESNET = Conv2dProblem(3, 3, 19, 24, 64, 7, 7, 2, 2, pad_h=3, pad_w=3, dtype="f16", layout="nhwc", epilogue="bias_relu")
"""Odd padding, so that windows begin a column before the first tap; loads of four elements; ten rows of twelve."""
VGG = replace(RESNET, r=3, s=3, stride_h=1, stride_w=1, pad_h=1, pad_w=1, k=96, epilogue="bias")
"""Chunks that overlap; two tiles of output channels, the second half empty."""
MOBILENET = replace(RESNET, r=3, s=3, pad_h=1, pad_w=1, h=23, w=21, k=32, epilogue="none")
"""Loads of one element; warps without an output channel."""
ALEXNET = replace(RESNET, r=11, s=11, h=33, w=42, stride_h=4, stride_w=4, pad_h=2, pad_w=2, k=8, dtype="bf16")
"""Two planes of chunks; loads of two elements."""
PATCHES = replace(RESNET, n=1, c=4, r=4, s=8, h=20, w=50, stride_h=4, stride_w=8, pad_h=0, pad_w=0)
"""Four planes; no padding."""
NARROW = replace(RESNET, c=1, r=5, s=1, h=9, w=5, stride_w=1, pad_h=9, pad_w=7, dilation_h=2, dilation_w=3)
"""More padding than input; dilated taps; a filter of one column."""
PAIRS = replace(RESNET, c=2, r=2, s=6, stride_h=3, pad_h=0, pad_w=1, k=72, dtype="bf16", epilogue="none")
"""Two channels; a filter of an even width, which a window that begins before it makes longer."""

FLOATS = replace(RESNET, dtype="f32")
"""Chunks of one column in two planes; outputs in two boxes."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (VGG, {**SHARED, "window_rows": 3, "column_tiles": 2}),
        (VGG, {**BASE, "producers": 2, "channels": "split"}),
        (FLOATS, BASE),
        (replace(FLOATS, layout="nchw", h=9, w=30, k=70), {**SHARED, "column_tiles": 2}),
        (replace(VGG, w=8), {**BASE, "window_rows": 4}),  # rows of eight columns in one MMA
        *long_run(
            (replace(FLOATS, w=16, k=72), {**SHARED, "window_rows": 3}),
            (replace(FLOATS, layout="nchw", w=16, c=1, r=3, s=3), {**BASE, "window_rows": 4}),
            (replace(FLOATS, layout="nchw", w=14, h=9), {**BASE, "window_rows": 4}),
            (replace(FLOATS, layout="nchw", w=16, h=9), {**BASE, "window_rows": 4}),
            (replace(FLOATS, layout="nchw", w=21, stride_w=1, pad_w=0), {**BASE, "column_tiles": 2}),
            (ALEXNET, BASE),
            (replace(VGG, dtype="f32"), SHARED),
            (replace(FLOATS, stride_w=1, w=21), {**BASE, "column_tiles": 2}),
            (replace(FLOATS, stride_w=4, pad_w=2), {**SHARED, "register_prefetch": 1}),
            (replace(FLOATS, stride_w=8, k=72, epilogue="none"), BASE),
            (replace(MOBILENET, dtype="f32"), {**BASE, "epilogue_stages": 2}),
            (replace(NARROW, dtype="f32"), {**BASE, "window_rows": 4}),
            (MOBILENET, {**BASE, "window_rows": 6, "epilogue_stages": 2}),
            (RESNET, BASE),
            (RESNET, {**SHARED, "window_rows": 1, "stages": 4}),
            (replace(RESNET, w=150), {**BASE, "column_tiles": 3, "register_prefetch": 8}),
            (replace(VGG, k=136), {**BASE, "stages": 3}),
            (MOBILENET, {**SHARED, "column_tiles": 2, "window_rows": 3}),
            (PATCHES, {**BASE, "window_rows": 1}),
            (NARROW, {**BASE, "window_rows": 4}),
            (PAIRS, {**SHARED, "register_prefetch": 1}),
            (PAIRS, {**BASE, "window_rows": 6}),
        ),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


@pytest.mark.cxx
@pytest.mark.parametrize("values", every(2, [BASE, SHARED]))
def test_floats_are_rounded_to_the_nearest_tf32(values: dict[str, int | str]) -> None:
    """For x and for w: wgmma ignores the last 13 bits."""
    problem = Conv2dProblem(1, 4, 8, 8, 8, 1, 1, layout="nhwc")
    source = render(BoundTemplate(family(NAME), problem, H200), Config.of(NAME, values))
    random = np.random.default_rng(0)
    x, w = (random.integers(0x30000000, 0x4F000000, (count, 4), np.uint32) for count in (64, 8))
    ones = np.eye(8, 4, dtype=np.float32)

    def nearest(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return bits + 0x1000 & np.uint32(0xFFFFE000)

    with closing(host_device(str(find_cxx()))) as device:
        y = np.frombuffer(output_bytes(device, source, {"x": x.tobytes(), "w": ones.tobytes()}), np.uint32)
        np.testing.assert_array_equal(y.reshape(64, 8)[:, :4], nearest(x))
        pixels = np.resize(ones[:4], (64, 4))
        y = np.frombuffer(output_bytes(device, source, {"x": pixels.tobytes(), "w": w.tobytes()}), np.uint32)
        np.testing.assert_array_equal(y.reshape(64, 8)[:4], nearest(w).T)


@pytest.mark.cxx
@pytest.mark.parametrize("problem", [replace(RESNET, epilogue="none"), *long_run((replace(VGG, epilogue="none"),))])
def test_an_infinity_stays_in_its_image(problem: Conv2dProblem) -> None:
    assert images_with_infinities(NAME, problem, BASE) == {1}


@pytest.mark.parametrize(
    "problem",
    [
        replace(RESNET, c=5),
        replace(RESNET, k=60),
        replace(RESNET, layout="nchw"),
        replace(RESNET, stride_w=3),
        replace(RESNET, dilation_w=2),
        replace(RESNET, epilogue="bias_add_relu"),
    ],
)
def test_what_windows_do_not_hold_is_not_supported(problem: Conv2dProblem) -> None:
    assert not BoundTemplate(family(NAME), problem, H200).supported


@pytest.mark.parametrize("arch", [80, 89, 100])
def test_no_other_architecture_is_offered_it(arch: int) -> None:
    assert not BoundTemplate(family(NAME), RESNET, replace(H200, arch=arch)).supported


FIRST_LAYERS = {
    "resnet": replace(RESNET, n=64, h=224, w=224),
    "resnet in floats": replace(FLOATS, n=64, h=224, w=224),
    "vgg": replace(VGG, n=64, h=224, w=224, k=64),
    "mobilenet": replace(MOBILENET, n=64, h=224, w=224),
    "inception": replace(MOBILENET, n=64, h=299, w=299, pad_h=0, pad_w=0),
    "efficientnet": replace(MOBILENET, n=64, h=300, w=300),
    "alexnet": replace(ALEXNET, n=64, h=224, w=224, k=64),
    "convnext": replace(PATCHES, n=64, c=3, s=4, h=224, w=224, stride_w=4, k=96),
    "detection": replace(RESNET, n=2, h=800, w=1333),
}


@pytest.mark.parametrize("name", FIRST_LAYERS)
def test_first_layers_have_configs_and_all_fit_a_multiprocessor(name: str) -> None:
    bound = BoundTemplate(family(NAME), FIRST_LAYERS[name], H200, Admission(prune=True))
    space = SearchSpace(bound)
    assert len(space.rows) > 20
    for row in range(0, len(space.rows), 7):
        names = bound.check(space.config(row))
        assert int(names["smem_bytes"]) <= H200.smem_per_block_bytes
        producers, registers = int(names["producers"]), int(names["producer_registers"])
        assert 128 * (producers * registers + 2 * int(names["consumer_registers"])) <= 65536  # of a multiprocessor


LARGEST: list[tuple[str, dict[str, int | str]]] = [
    ("resnet", {"window_rows": 8, "register_prefetch": 4}),
    ("resnet", {"filters": "shared", "window_rows": 8, "register_prefetch": 8}),
    ("resnet in floats", {"window_rows": 4}),
    ("resnet in floats", {"filters": "shared", "window_rows": 4, "epilogue_stages": 1}),
    ("vgg", {"window_rows": 4, "register_prefetch": 8}),
    ("inception", {"window_rows": 4, "register_prefetch": 4}),
    ("alexnet", {"window_rows": 4, "register_prefetch": 4}),
    ("alexnet", {"window_rows": 4, "register_prefetch": 1, "producers": 2}),
    ("detection", {"column_tiles": 3, "window_rows": 1}),
]
"""As many registers as MMAs and producers may use."""


@pytest.mark.nvcc
@pytest.mark.parametrize(("name", "values"), [*LARGEST[:2], *long_run(*LARGEST[2:])])
def test_the_largest_tiles_compile_without_spills_and_products_overlap(name: str, values: dict[str, int | str]) -> None:
    source = render(BoundTemplate(family(NAME), FIRST_LAYERS[name], H200), Config.of(NAME, {**BASE, **values}))
    binary = compile_cubin(source.program, 90, find_nvcc())
    assert binary.resources.spill_bytes == 0
    assert not re.search(r"C7\d{3}", binary.log), binary.log


FAULTS = {
    "the producer does not wait": ("pipeline.producer_acquire(state);", ";"),
    "the producer waits for the wrong phase": ("state.phase ^ 1);", "state.phase);"),
    "consumers wait for the wrong phase": ("full + state.index, state.phase)", "full + state.index, state.phase ^ 1)"),
    "windows are committed without a fence": ("        fence_bulk();\n        __syncwarp();", "        __syncwarp();"),
    "a window is released while products read it": ("                wgmma_wait(d);\n", ""),
    "padding is not zero": ("            loads[i] = {};\n", ""),
    "rows above the image are not padding": ("row >= 0 && row < H", "row < H"),
    "columns behind a row are not padding": ("&& element < W * C", ""),
    "channels are not filled up": ("columns.at[j / C * 4 + j % C]", "columns.at[j]"),
    "weights of columns before the filter are not zero": ("k < K && s >= 0 && s < S", "k < K"),
    "filters are read before all are arranged": ("    sync_threads<128 * CONSUMERS>(1 + CONSUMERS);\n", ""),
    "the next chunk in depth is elsewhere": (
        "wgmma_operand(windows, 0, 16, 128)",
        "wgmma_operand(windows, 0, 32, 128)",
    ),
    "the next eight columns are elsewhere": (
        "wgmma_operand(windows, 0, 16, 128)",
        "wgmma_operand(windows, 0, 16, 256)",
    ),
    "rows of the filter change places": ("i / 4 * 2048 + i / 2 % 2", "(STEPS - 1 - i / 4) * 2048 + i / 2 % 2"),
    "windows begin without the padding": ("* STRIDE_H - PAD_H", "* STRIDE_H"),
    "outputs are stored without a fence": (
        "        fence_bulk();\n        sync_threads<128>",
        "        sync_threads<128>",
    ),
    "outputs are staged where a store reads": ("wait_read<STAGES - 1>();", "wait_read<STAGES>();"),
    "a warpgroup takes the other's row": ("row = turn ^ consumer", "row = consumer"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, RESNET, {**BASE, "window_rows": 3}, FAULTS[what], host)


@pytest.mark.cxx
def test_consumers_that_do_not_wait_are_found_in_shuffled_order(checked: DeviceEvaluator) -> None:
    change = ("pipeline.consumer_wait(state);", "")
    assert refuses_changed(NAME, RESNET, {**BASE, "window_rows": 3}, change, checked)


SHARED_FAULTS = {
    "filters are not fenced": (
        "    fence_bulk();\n    sync_threads<128 * CONSUMERS>",
        "    sync_threads<128 * CONSUMERS>",
    ),
    "the next chunk of filters is elsewhere": (
        "wgmma_operand(filters, 0, 1024, 128)",
        "wgmma_operand(filters, 0, 128, 128)",
    ),
    "the next eight output channels are elsewhere": (
        "wgmma_operand(filters, 0, 1024, 128)",
        "wgmma_operand(filters, 0, 1024, 64)",
    ),
    "operands are of the tile before": (
        "(channel_tile * (FILTER_BYTES / DESCRIPTOR_UNIT) + step * 128)",
        "(step * 128)",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(SHARED_FAULTS), SHARED_FAULTS))
def test_a_mistake_with_filters_in_shared_memory_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, VGG, SHARED, SHARED_FAULTS[what], host)
