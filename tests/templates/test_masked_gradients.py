"""Data gradients through activations: conv_transpose with a residual and a mask, or with a derivative."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from autotune.autotune_runtime.activations import BY_WORD
from autotune.compilation.toolchain import find_cxx
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.problem import Problem, make_problem
from tests.compiled import host_device
from tests.long_run import every, long_run
from tests.problems import CONV_TRANSPOSE

from .shipped_families import H200, default_of, family, output_bytes, refuses_changed, verify

DIRECT, SM90 = "conv_transpose_direct", "conv_transpose_implicit_gemm_sm90"
BASE: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 64,
    "schedule": "cooperative",
    "window_rows": 0,
    "folded": 1,
    "epilogue_subtiles": 1,
}
POINTWISE: dict[str, int | str] = {"n": 3, "c": 64, "h": 7, "w": 9, "k": 136, "r": 1, "s": 1, "dtype": "bf16"}
PADDED = {**POINTWISE, "c": 24, "k": 72, "r": 3, "s": 3, "padding_h": 1, "padding_w": 1}


def problem(sizes: dict[str, int | str], **changes: int | str) -> Problem:
    """A masked data gradient, channels-last."""
    return make_problem(CONV_TRANSPOSE, {**sizes, "layout": "nhwc", "epilogue": "add_masked", **changes})


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "masked", "values"),
    [
        (DIRECT, problem(PADDED, dtype="f32", layout="nchw", stride_h=2, stride_w=2), {}),
        (SM90, problem(POINTWISE), {"schedule": "pingpong", "tile_n": 72}),
        (SM90, problem(POINTWISE, epilogue="derivative_gelu"), {"tile_m": 128, "tile_n": 96, "epilogue_subtiles": 3}),
        (SM90, problem(POINTWISE, dtype="f32"), {"schedule": "pingpong", "epilogue_subtiles": 2}),
        (SM90, problem(PADDED), {"tile_m": 128, "tile_n": 40, "window_rows": 4}),
        (DIRECT, problem(PADDED, epilogue="derivative_gelu_tanh", dtype="f32"), {}),
        *long_run(
            (SM90, problem(PADDED, c=136), {"tile_m": 192, "tile_n": 96, "epilogue_subtiles": 2}),
            (SM90, problem(POINTWISE, epilogue="derivative_silu", dtype="f32"), {"schedule": "pingpong"}),
            (SM90, problem(PADDED, epilogue="derivative_relu"), {"tile_m": 128, "tile_n": 40, "window_rows": 4}),
            *((DIRECT, problem(PADDED, epilogue=f"derivative_{word}", dtype="f32"), {}) for word in BY_WORD),
        ),
    ],
)
def test_gradients_through_activations_are_right(
    name: str, masked: Problem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    default = default_of(name, masked)
    assert default is not None
    verify(name, masked, {**(BASE if name == SM90 else default.params), **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("sizes", "change"),
    [
        (POINTWISE, ("mask, column + tile * (8 * ROW_BYTES) + MASK", "mask, column + tile * (8 * ROW_BYTES)")),
        (PADDED, ("k + row, TAPS - 1 - tap, c", "k + row, tap, c")),
    ],
)
def test_a_wrong_mask_and_taps_in_the_wrong_order_are_found(
    sizes: dict[str, int | str], change: tuple[str, str], host: DeviceEvaluator
) -> None:
    assert refuses_changed(SM90, problem(sizes), BASE, change, host)


LIMITS: Mapping[str, tuple[float, float]] = {
    "gelu": (0.0, 1.0),
    "silu": (0.0, 1.0),
    "gelu_tanh": (0.0, 1.0),
    "hardswish": (0.0, 1.0),
    "sigmoid": (0.0, 0.0),
}
"""an activation -> its slopes far below and far above 0"""


@pytest.mark.cxx
@pytest.mark.parametrize("activation", every(len(LIMITS), LIMITS))
def test_slopes_have_limits_and_a_nan_stays_one(activation: str) -> None:
    sizes: dict[str, int | str] = {"n": 1, "c": 1, "h": 1, "w": 3, "k": 1, "r": 1, "s": 1}
    sizes |= {"dtype": "f32", "layout": "nhwc"}
    saved = np.array([-30, 30, math.nan], np.float32)
    config = default_of(DIRECT, one := make_problem(CONV_TRANSPOSE, {**sizes, "epilogue": f"derivative_{activation}"}))
    assert config is not None
    device = host_device(str(find_cxx()))
    source = render(BoundTemplate(family(DIRECT), one, device.info), config)
    ones = np.ones(3, np.float32)
    inputs = {"x": ones.tobytes(), "w": ones[:1].tobytes(), "saved": saved.tobytes()}
    found = np.frombuffer(output_bytes(device, source, inputs), np.float32)
    device.close()
    np.testing.assert_allclose(found, (*LIMITS[activation], math.nan), atol=1e-6)


def test_families_without_masks_are_refused() -> None:
    unmet = BoundTemplate(family("conv_transpose_mma_gemm"), problem(POINTWISE), H200).unmet
    assert unmet == "the problem has no mask"
