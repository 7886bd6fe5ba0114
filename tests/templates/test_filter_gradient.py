"""conv_filter_gradient: sums over all pixels, which blocks share, for every tap; and PyTorch's gradient."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.compilation.toolchain import find_cxx
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting.golden import data_of
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.measurement.storage import encoded
from autotune.problem import Problem, make_problem
from autotune.trial import Value
from tests.compiled import host_device
from tests.long_run import every, long_run
from tests.problems import FILTER_GRADIENT, FILTER_GRADIENTS

from .shipped_families import default_of, family, output_bytes, refuses_changed, verify

Values = dict[str, int | str]
MMA, SM90 = "conv_filter_gradient_mma", "conv_filter_gradient_sm90"
FEW = "conv_filter_gradient_few_channels_sm90"
SMALL: Values = {"warp_k": 16, "warp_columns": 16, "warps_k": 2, "warps_column": 1, "step_pixels": 16, "stages": 3}
SMALL |= {"min_blocks": 2, "contiguous": "tap"}
WIDE = SMALL | {"warp_columns": 64, "warp_k": 32, "stages": 2, "min_blocks": 1, "step_pixels": 32}


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("same", WIDE),
        ("stem", {**SMALL, "contiguous": "row"}),
        ("depthwise", SMALL),
        ("groups", SMALL),
        *long_run(*((label, values) for label in FILTER_GRADIENTS for values in (SMALL, WIDE))),
    ],
)
def test_config_is_right(label: str, values: Values, checked: DeviceEvaluator) -> None:
    verify(MMA, FILTER_GRADIENTS[label], values, checked)


SAME = FILTER_GRADIENTS["same"]
WINDOWS: Values = {"tile_k": 64, "tile_boxes": 1, "window_rows": 4, "shared_k": 1, "splits": 1}


def changed(**values: Value) -> Problem:
    return make_problem(FILTER_GRADIENT, {**SAME.values, "c": 24, "k": 40, **values})


ONE_TILE_EACH: Values = {"tile_k": 128, "tile_boxes": 2, "window_rows": 0}
POINTWISE = changed(r=1, s=1, pad_h=0, pad_w=0, pad_h_end=0, pad_w_end=0, c=136, k=264)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SAME, WINDOWS),
        (FILTER_GRADIENTS["pointwise"], {"tile_k": 128, "tile_boxes": 1, "window_rows": 0}),
        (POINTWISE, {"tile_k": 64, "tile_boxes": 2, "window_rows": 0, "shared_k": 2}),
        (POINTWISE, {"tile_k": 64, "tile_boxes": 2, "window_rows": 0, "shared_k": 2, "splits": 2}),
        (changed(d=3, t=2, pad_d=1, w=5), {**WINDOWS, "window_rows": 3}),
        (changed(c=24, k=48, groups=3, w=5), WINDOWS),
        (changed(r=1, s=1, pad_h=0, pad_w=0, pad_h_end=0, pad_w_end=0, c=136, k=104), ONE_TILE_EACH),
        *long_run(
            (SAME, {"tile_k": 64, "tile_boxes": 2, "window_rows": 0}),
            (changed(d=4, t=3, pad_d=2, pad_d_end=1, stride_d=2, dilation_d=2, c=72), WINDOWS),
            (changed(c=64, k=64, groups=16), {"tile_k": 64, "tile_boxes": 3, "window_rows": 0, "splits": 2}),
            (changed(c=168, k=168, groups=7, stride_h=2), {"tile_k": 64, "tile_boxes": 4, "window_rows": 0}),
            (changed(stride_h=2, stride_w=2, w=11), {"tile_k": 64, "tile_boxes": 3, "window_rows": 0}),
            (changed(r=2, s=4, dilation_w=2, pad_w=3), WINDOWS),
            (changed(r=1, pad_h=0, h=1, pad_h_end=0, w=75, dtype="bf16"), {**WINDOWS, "window_rows": 1}),
            (changed(d=4, t=3, pad_d=2, stride_d=2), {"tile_k": 128, "tile_boxes": 4, "window_rows": 0}),
            (POINTWISE, {"tile_k": 128, "tile_boxes": 4, "window_rows": 0, "shared_k": 2}),
            (changed(r=1, s=1, c=136, k=264), {"tile_k": 256, "tile_boxes": 2, "window_rows": 0}),
        ),
    ],
)
def test_config_for_hopper_is_right(problem: Problem, values: Values, host: DeviceEvaluator) -> None:
    verify(SM90, problem, {"shared_k": 1, "splits": 1, **values}, host)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "change",
    [
        ("DILATION_H * PITCH * OPERAND_ROW_BYTES", "DILATION_H * (PITCH - 1) * OPERAND_ROW_BYTES"),
        *long_run((("clear_rows(stages + stage * STAGE_BYTES, DY_LOADED, DEPTH);", ""),), (("wgmma_wait(d);", ""),)),
    ],
)
def test_a_mistake_in_windows_is_found(change: tuple[str, str], host: DeviceEvaluator) -> None:
    assert refuses_changed(SM90, SAME, WINDOWS, change, host)


FIRST = FILTER_GRADIENTS["first"]
PAIRS: dict[str, Value] = {"c": 2, "w": 40, "k": 16, "r": 3, "s": 3, "stride_h": 1, "stride_w": 1, "dilation_h": 2}


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (FIRST, {"tile_k": 64, "window_rows": 2, "piece": 16}),
        *long_run(
            (FIRST, {"tile_k": 128, "window_rows": 1, "piece": 48}),
            (FIRST, {"piece": 8}),
            (make_problem(FILTER_GRADIENT, {**FIRST.values, **PAIRS}), {"tile_k": 64, "window_rows": 3, "piece": 16}),
            (make_problem(FILTER_GRADIENT, {**FIRST.values, **PAIRS, "pad_w": 0}), {"piece": 80}),
        ),
    ],
)
def test_config_for_first_layers_is_right(problem: Problem, values: Values, host: DeviceEvaluator) -> None:
    verify(FEW, problem, {"tile_k": 64, "window_rows": 2, **values}, host)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "change",
    [
        ("full, 0, -LEFT / PIECE", "full, 0, 0"),
        *long_run((("wgmma_wait(d);", ""),), (("pixel % ROW_PIXELS * STEP", "pixel * STEP"),)),
    ],
)
def test_a_mistake_in_first_layers_is_found(change: tuple[str, str], host: DeviceEvaluator) -> None:
    assert refuses_changed(FEW, FIRST, {"tile_k": 64, "window_rows": 2, "piece": 16}, change, host)


FAULTS = {
    "a part is left out": ("block <= end; block", "block < end; block"),
    "the last pixel is left out": ("row_inside = pixel < pixels", "row_inside = pixel < pixels - 1"),
    "padding is the row before": ("static_cast<unsigned>(w) < static_cast<unsigned>(W);", "w < W;"),
    "the next tile overwrites what is read": ("        __syncthreads();  // the stages have been read\n", ""),
    "blocks overwrite each other's sums": ("(TILES + blocks - 1) / blocks + 1", "(TILES + blocks - 1) / blocks - 1"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(3, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(MMA, FILTER_GRADIENTS["same"], SMALL, FAULTS[what], host)


@pytest.mark.cxx
@pytest.mark.parametrize("label", FILTER_GRADIENTS)
def test_a_filter_gradient_is_pytorchs(label: str) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    problem = make_problem(FILTER_GRADIENT, {**FILTER_GRADIENTS[label].values, "dtype": "f32"})
    config = default_of(MMA, problem)
    assert config is not None
    device, data = host_device(str(find_cxx())), data_of(problem, integers=True)
    source = render(BoundTemplate(family(MMA), problem, device.info), config)
    dw = np.frombuffer(
        output_bytes(device, source, {name: encoded(each, "f32") for name, each in data.items()}), np.float32
    )
    device.close()
    sizes = {name: int(size) for name, size in problem.values.items() if isinstance(size, int)}

    def channels_first(name: str, values: object) -> object:
        shaped = np.asarray(values, np.float64).reshape(problem.array(name).shape)
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(shaped, -1, 1)))

    x, dy = (channels_first(name, data[name]) for name in ("x", "dy"))
    w = torch.zeros((sizes["k"], sizes["c"] // sizes["groups"], *(sizes[axis] for axis in "trs")), dtype=torch.float64)
    w.requires_grad_()
    sides = [sizes[f"pad_{axis}{end}"] for axis in "whd" for end in ("", "_end")]
    stride, dilation = ([sizes[f"{name}_{axis}"] for axis in "dhw"] for name in ("stride", "dilation"))
    y = torch.nn.functional.conv3d(torch.nn.functional.pad(x, sides), w, None, stride, 0, dilation, sizes["groups"])
    y.backward(dy)
    np.testing.assert_array_equal(dw, np.moveaxis(w.grad.numpy(), 1, -1).reshape(-1))
