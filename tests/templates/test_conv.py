"""Families of conv that it shares with conv2d: frames, padding on one side, and the references themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest

from autotune.checking.pairwise import Covering
from autotune.checking.problem_features import problem_features
from autotune.checking.problems import derive
from autotune.compilation.toolchain import find_cxx
from autotune.devices import torch_conv
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting.golden import Doubles, data_of, golden
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.measurement.storage import encoded
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from autotune.trial import Config, Value
from tests.compiled import host_device
from tests.long_run import every, long_run
from tests.problems import CONV, CONV_PROBLEMS, TRANSPOSED_PROBLEMS

from .shipped_families import FILES, H200, default_of, family, output_bytes, refuses_changed, verify

SM90 = "conv_implicit_gemm_sm90"
BASE: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 64,
    "schedule": "cooperative",
    "window_rows": 0,
    "folded": 1,
    "epilogue_subtiles": 1,
}
STRIPS: dict[str, int | str] = {"window_rows": 4, "tile_n": 32, "schedule": "pingpong"}


def changed(problem: Problem, **values: Value) -> Problem:
    """A problem of conv with other sizes or words."""
    return make_problem(CONV, {**problem.values, **values})


def operands(torch: ModuleType, problem: Problem, data: Mapping[str, Doubles]) -> list[object]:
    """x, w, bias, z and cache as PyTorch's operator takes them."""

    def operand(name: str) -> object:
        values = data[name].reshape(problem.array(name).shape).astype(np.float32)
        if problem.values["layout"] == "nhwc" and values.ndim > 1:
            values = np.moveaxis(values, -1, 1)
        flat = values.ndim > 1 and not problem.names()["deep"]
        return torch.from_numpy(np.ascontiguousarray(values.squeeze(2) if flat else values))

    names = ("x", "w", "bias", "z", *(("cache",) if problem.has("cache") else ()))
    return [operand(name) if problem.has(name) else None for name in names]


CAUSAL = CONV_PROBLEMS["causal"]
WIDE = changed(CAUSAL, c=72, d=3, h=8, w=11, k=16, epilogue="bias_add_relu")
"""Two slices of channels; a strip and a half."""
SIGNAL = changed(CONV_PROBLEMS["signal"], w=300, c=32, k=64, s=5)
"""A window of one dimension, with the filters of two taps per stage."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (CAUSAL, {"schedule": "pingpong", "tile_n": 104}),
        (changed(CONV_PROBLEMS["signal"], w=300, dilation_w=64, pad_w=128), {"tile_n": 80}),
        (SIGNAL, {"window_rows": 96, "tile_n": 96, "schedule": "pingpong"}),
        (WIDE, {**STRIPS, "folded": 2}),
        *long_run(
            (WIDE, {"window_rows": 8, "schedule": "pingpong"}),
            (changed(WIDE, dtype="f32", c=32), {**STRIPS, "folded": 2}),
            (changed(SIGNAL, n=5, w=24, c=72, dilation_w=3), {"window_rows": 96, "tile_n": 96, "schedule": "pingpong"}),
            (changed(SIGNAL, dtype="f32", c=40, k=128), {"window_rows": 128, "tile_n": 128, "tile_m": 128}),
            (changed(CAUSAL, c=32), {"window_rows": 6, "tile_n": 72, "schedule": "pingpong"}),
            (CAUSAL, {"window_rows": 6, "tile_n": 72, "schedule": "pingpong"}),
            (WIDE, {"window_rows": 16, "tile_n": 128, "epilogue_subtiles": 2}),
            (changed(WIDE, stride_d=2, dilation_d=2, pad_d=4), {"window_rows": 8}),
            (changed(CAUSAL, pad_w_end=0, pad_h=0), {"window_rows": 6, "tile_n": 72, "schedule": "pingpong"}),
            (changed(CAUSAL, stride_h=2, stride_w=2, stride_d=3), {"tile_n": 80, "epilogue_subtiles": 5}),
            (changed(CAUSAL, dtype="f32", c=36), {"tile_n": 80}),
        ),
    ],
)
def test_frames_are_read_from_the_front_and_padded_in_front_alone(
    problem: Problem, values: dict[str, int | str], host: DeviceEvaluator
) -> None:
    verify(SM90, problem, {**BASE, **values}, host)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (changed(CAUSAL, c=3, k=5, stride_d=2, pad_d_end=1), {"contiguous_taps": "row", "stages": 1}),
        (changed(CAUSAL, c=3, epilogue="bias_add"), {"contiguous_taps": "row", "frames": 2, "warp_p": 3}),
        (changed(CAUSAL, k=3), {"channel_slices": 2, "frames": 4, "stages": 3}),
        (changed(CAUSAL, pad_w=0), {"channel_slices": 2, "filters": "staged", "stages": 3}),
        *long_run(
            (changed(CAUSAL, c=3, epilogue="bias_add"), {"contiguous_taps": "row", "stages": 2}),
            (changed(CAUSAL, c=3, dtype="f32"), {"contiguous_taps": "row", "stages": 2}),
        ),
    ],
)
def test_slices_of_mma_gemm_are_channels_of_a_frame(
    problem: Problem, values: dict[str, int | str], host: DeviceEvaluator
) -> None:
    default = default_of("conv_mma_gemm", problem)
    assert default is not None
    verify("conv_mma_gemm", problem, {**default.params, **values}, host)


DEPTHWISE = CONV_PROBLEMS["depthwise video"]
PADDED_BELOW = changed(DEPTHWISE, d=4, t=1, stride_d=1, pad_d=0, pad_h=0, dtype="f16", epilogue="bias_silu")
"""Frames are images; the last rows read padding below the image, and the first ones none above it."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "unroll"),
    [(DEPTHWISE, "window"), (DEPTHWISE, "row"), (PADDED_BELOW, "sliding"), *long_run((PADDED_BELOW, "window"))],
)
def test_depthwise_filters_pass_over_the_frames_of_a_video(
    problem: Problem, unroll: str, checked: DeviceEvaluator
) -> None:
    values = {"channels": 4, "thread_p": 4, "thread_q": 2, "block_c": 2, "block_q": 4, "block_p": 1}
    verify("conv_depthwise_nhwc", problem, {**values, "unroll": unroll, "warps": 16, "prefetch": 0}, checked)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_depthwise_filters_of_many_taps_in_a_row_have_a_config(dtype: str) -> None:
    sizes = {"c": 512, "k": 512, "groups": 512, "w": 1024, "s": 31, "pad_w": 15, "pad_w_end": 15}
    problem = changed(CONV_PROBLEMS["depthwise signal"], **sizes, dtype=dtype, layout="nhwc")
    assert default_of("conv_depthwise_nhwc", problem) is not None


@pytest.mark.cxx
@pytest.mark.parametrize("size", [{}, {"h": 9, "r": 3, "pad_h_end": 2, "w": 12, "dtype": "f32", "epilogue": "bias"}])
def test_depthwise_planes_are_padded_on_one_side(size: Mapping[str, Value], checked: DeviceEvaluator) -> None:
    problem = changed(CONV_PROBLEMS["depthwise signal"], **size)
    values: dict[str, int | str] = {
        "inputs": "shared",
        "stores": "staged",
        "thread_p": 2,
        "thread_q": 4,
        "planes": 2,
        "row_tiles": 1,
    }
    values |= {"block": 128, "unroll": "window", "filters": "global", "warps": 16}
    verify("conv_depthwise", problem, values, checked)


CACHED = CONV_PROBLEMS["cached"]


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [
        (SM90, CACHED, {"tile_n": 48}),
        (SM90, CACHED, {"window_rows": 8, "schedule": "pingpong"}),
        (SM90, changed(CACHED, r=1, s=1, pad_h=0, pad_h_end=0, pad_w=0, pad_w_end=0, pad_d=1), {"tile_n": 96}),
        ("conv_mma_gemm", CACHED, {"channel_slices": 2, "frames": 2}),
        ("conv_mma_gemm", changed(CACHED, c=6, dtype="f16", stride_d=2, cache_d=5), {"filters": "staged", "stages": 3}),
        ("conv_implicit_gemm", changed(CACHED, dtype="f16", groups=2, dilation_d=2), {}),
        (
            "conv_implicit_gemm",
            CONV_PROBLEMS["cached planes"],
            {"launch": "image", "tm": 1, "tn": 1, "vec": 1, "bm": 8, "bn": 16},
        ),
    ],
)
def test_frames_in_front_are_read_from_the_cache(
    name: str, problem: Problem, values: dict[str, int | str], host: DeviceEvaluator
) -> None:
    default = default_of(name, problem)
    assert default is not None
    verify(name, problem, {**(BASE if name == SM90 else default.params), **values}, host)


@pytest.mark.cxx
def test_a_frame_that_is_read_from_the_cache_of_another_video_is_found(host: DeviceEvaluator) -> None:
    change = ("image / O * CACHE_D + frame : -1", "frame : -1")
    assert refuses_changed(SM90, CACHED, {**BASE, "tile_n": 48}, change, host)


@pytest.mark.parametrize(("name", "most"), [(SM90, 8), ("conv_split_k_sm90", None)])
def test_check_has_cached_frames_for_families_that_read_them(name: str, most: int | None) -> None:
    covering = Covering([len(values) for _, values in problem_features(family(name).operation).values])
    problems = derive(family(name), H200, covering, 0, most=most).problems
    assert any(each.bound.problem.has("cache") for each in problems) == (name == SM90)


def test_a_family_that_does_not_read_the_cache_is_refused() -> None:
    problem = changed(CACHED, groups=16, k=16)
    assert BoundTemplate(family("conv_depthwise_nhwc"), problem, H200).unmet == "the problem has no cache"


@pytest.mark.cxx
def test_a_frame_of_the_padding_that_is_read_from_another_video_is_found(host: DeviceEvaluator) -> None:
    change = ("image / O * D + frame : -1", "image / O * D + frame : 0")
    assert refuses_changed(SM90, WIDE, {**BASE, "window_rows": 8, "schedule": "pingpong"}, change, host)


@pytest.mark.cxx
@pytest.mark.parametrize("label", CONV_PROBLEMS)
def test_kernel_and_golden_values_agree_with_pytorch(label: str) -> None:
    """`verify` checks the float64 reference in C++, and this test checks the one in NumPy, both against PyTorch's
    operators.
    """
    torch = pytest.importorskip("torch", exc_type=ImportError)
    problem = changed(CONV_PROBLEMS[label], dtype="f32", n=golden(CONV_PROBLEMS[label], 0).sizes[0])
    device = host_device(str(find_cxx()))
    config = default_of("conv_implicit_gemm", problem)
    assert config is not None
    data = data_of(problem, integers=True)
    source = render(BoundTemplate(family("conv_implicit_gemm"), problem, device.info), config)
    inputs = {name: encoded(values, "f32") for name, values in data.items()}
    y = np.frombuffer(output_bytes(device, source, inputs), np.float32)
    device.close()
    (samples,) = (each for each in golden(problem, 0).sets if each.integers)
    np.testing.assert_allclose(y[list(samples.indices)], samples.values, rtol=1e-5, atol=1e-5)

    found = torch_conv.operators(problem, fused=False)(*operands(torch, problem, data)).numpy()
    if problem.values["layout"] == "nhwc":
        found = np.moveaxis(found, 1, -1)
    np.testing.assert_allclose(y, found.reshape(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.cxx
@pytest.mark.parametrize("label", TRANSPOSED_PROBLEMS)
def test_a_transposed_convolution_is_pytorchs(label: str) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    given = TRANSPOSED_PROBLEMS[label]
    problem = make_problem(given.operation, {**given.values, "dtype": "f32"})
    config = default_of("conv_transpose_direct", problem)
    assert config is not None
    device, data = host_device(str(find_cxx())), data_of(problem, integers=True)
    source = render(BoundTemplate(family("conv_transpose_direct"), problem, device.info), config)
    inputs = {name: encoded(values, "f32") for name, values in data.items()}
    y = np.frombuffer(output_bytes(device, source, inputs), np.float32)
    device.close()
    found = torch_conv.operators(problem, fused=False)(*operands(torch, problem, data)).numpy()
    found = np.moveaxis(found, 1, -1) if problem.values["layout"] == "nhwc" else found
    np.testing.assert_allclose(y, found.reshape(-1), rtol=1e-4, atol=1e-4)


FEW = changed(CONV_PROBLEMS["video"], c=3, k=72, layout="nhwc", dtype="f16")
"""Frames and rows in front of a video, none after it; a stride of two in the image."""
EXPANDED: dict[str, int | str] = {
    "column_tiles": 1,
    "window_rows": 2,
    "filters": "registers",
    "stages": 2,
    "epilogue_stages": 1,
    "register_prefetch": 2,
    "producers": 1,
    "channels": "all",
}


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FEW, EXPANDED),
        *long_run(
            (changed(FEW, stride_d=2, dilation_d=2, pad_d=3, stride_h=1, stride_w=1, w=10), EXPANDED),
            (changed(FEW, dtype="f32", s=4, epilogue="none"), {**EXPANDED, "filters": "shared"}),
            (changed(FEW, dtype="f32", layout="nchw"), EXPANDED),
        ),
    ],
)
def test_frames_of_few_channels_are_expanded(
    problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    verify("conv_few_channels_sm90", problem, values, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "label", "sizes", "values"),
    [
        ("implicit_gemm_sm90", "volume", {"w": 9, "c": 32}, {**STRIPS, "folded": 2}),
        ("mma_gemm", "volume", {}, {}),
        ("split_k_sm90", "volume", {}, {}),
        *long_run(
            ("implicit_gemm_sm90", "volume", {}, {"window_rows": 6, "tile_n": 48, "schedule": "pingpong"}),
            ("implicit_gemm_sm90", "floats", {}, {"tile_m": 64}),
        ),
    ],
)
def test_a_transposed_convolution_of_stride_1_turns_its_filters_round(
    name: str, label: str, sizes: dict[str, Value], values: dict[str, int | str], host: DeviceEvaluator
) -> None:
    given = TRANSPOSED_PROBLEMS[label]
    name, problem = f"conv_transpose_{name}", make_problem(given.operation, {**given.values, **sizes})
    default = default_of(name, problem)
    assert default is not None
    verify(name, problem, {**default.params, **({} if "window_rows" not in values else BASE), **values}, host)


TILES: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 48,
    "schedule": "pingpong",
    "joined": "none",
    "window_rows": 0,
    "epilogue_subtiles": 2,
}
WINDOWS: dict[str, int | str] = {**TILES, "tile_n": 64, "window_rows": 8}


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "label", "sizes", "values"),
    [
        ("phases", "up", {"layout": "nhwc", "dtype": "bf16"}, {"joined": 1}),
        ("phases", "up", {"layout": "nhwc", "dtype": "f16", "groups": 2, "k": 10}, {"joined": 2}),
        ("phases", "gaps", {}, {"depth_bytes": 128, "stages": 2, "joined": 1}),
        ("phases", "gaps", {"c": 160}, {"joined": 1, "arithmetic": "split"}),
        ("phases", "gaps", {"c": 20, "k": 24}, {"joined": 1, "arithmetic": "ffma"}),
        ("phases_sm90", "upsampling", {}, TILES),
        ("phases_sm90", "upsampling", {}, {**TILES, "joined": "columns"}),
        ("phases_sm90", "upsampling", {"r": 2, "s": 2, "padding_h": 0, "padding_w": 2}, {**TILES, "joined": "all"}),
        ("phases_sm90", "upsampling", {"c": 32, "k": 32, "groups": 4}, {**TILES, "joined": "all"}),
        ("phases_sm90", "upsampling", {"dilation_h": 2, "dilation_w": 3}, TILES),
        ("phases_sm90", "upsampling", {"c": 32, "w": 9}, {**WINDOWS, "joined": "all"}),
        ("phases_sm90", "upsampling", {"dilation_h": 2, "dilation_w": 2, "w": 9}, WINDOWS),
        ("phases_sm90", "floats", {"stride_w": 2, "dilation_w": 2}, {**TILES, "window_rows": 1}),
        *long_run(
            ("phases", "upsampling", {"c": 41, "k": 3}, {"warp_tiles_k": 1, "joined": 1}),
            (
                "phases_sm90",
                "upsampling",
                {"stride_h": 3, "dtype": "f32"},
                {**TILES, "schedule": "cooperative", "tile_n": 64},
            ),
            ("phases_sm90", "upsampling", {"d": 4, "t": 3, "stride_d": 2, "output_padding_d": 1}, TILES),
            (
                "phases_sm90",
                "upsampling",
                {"h": 1, "r": 1, "stride_h": 1, "padding_h": 0, "output_padding_h": 0},
                TILES,
            ),
        ),
    ],
)
def test_a_transposed_convolution_with_a_stride_is_right_in_each_output_phase(
    name: str, label: str, sizes: dict[str, Value], values: dict[str, int | str], host: DeviceEvaluator
) -> None:
    given = TRANSPOSED_PROBLEMS[label]
    problem = make_problem(given.operation, {**given.values, **sizes})
    default = default_of(f"conv_transpose_{name}", problem)
    assert default is not None
    verify(f"conv_transpose_{name}", problem, {**default.params, **values}, host)


GROUPED: dict[str, Value] = {
    "layout": "nhwc",
    "dtype": "bf16",
    "n": 2,
    "c": 64,
    "k": 64,
    "h": 7,
    "w": 6,
    "r": 3,
    "s": 2,
}


@pytest.mark.cxx
@pytest.mark.parametrize("groups", every(3, [16, 4, 2]))
def test_a_transposed_convolution_of_groups_is_right(groups: int, host: DeviceEvaluator) -> None:
    name = "conv_transpose_grouped_sm90"
    problem = make_problem(TRANSPOSED_PROBLEMS["volume"].operation, {**GROUPED, "groups": groups})
    default = default_of(name, problem)
    assert default is not None
    verify(name, problem, default.params, host)
    if groups == 16:
        assert refuses_changed(name, problem, default.params, ("R * S - 1 - tap", "tap"), host)


@pytest.mark.parametrize("values", [{"stride_h": 2}, {"padding_h": 3}])
def test_a_transposed_convolution_that_is_no_convolution_is_refused(values: dict[str, int]) -> None:
    given = TRANSPOSED_PROBLEMS["volume"]
    problem = make_problem(given.operation, {**given.values, **values})
    for name in ("implicit_gemm_sm90", "mma_gemm"):
        unmet = BoundTemplate(family(f"conv_transpose_{name}"), problem, H200).unmet
        assert unmet.startswith("a transposed convolution has stride 1 and no more padding")


def test_a_family_that_serves_another_operation_has_its_own_text() -> None:
    shared, own = load_template(FILES[SM90]), family("implicit_gemm_sm90")
    assert (shared.name, shared.operation) == (SM90, operation("conv"))
    assert (shared.path, shared.text, shared.includes) == (own.path, own.text, own.includes)
    assert Config.of(SM90, BASE).template == shared.name


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"pad_d": 16}, "padding fits a TMA corner (7 bits; 15 in one dimension, 4 in three)"),
        ({"d": 40, "dilation_d": 9}, "a dilated filter fits a TMA corner (7 bits; 15 in one dimension, 4 in three)"),
        ({"h": 40, "dilation_h": 9}, "a dilated filter fits a TMA corner (7 bits; 15 in one dimension, 4 in three)"),
    ],
)
def test_what_a_tensor_map_of_five_dimensions_cannot_say_is_refused(values: dict[str, int], reason: str) -> None:
    assert BoundTemplate(family(SM90), changed(CAUSAL, **values), H200).unmet == reason
