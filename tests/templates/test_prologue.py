"""conv whose input is scaled, shifted and activated before it is multiplied."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.devices import torch_conv
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting.golden import data_of, golden
from autotune.family.space import BoundTemplate
from autotune.problem import Problem, make_problem
from tests.problems import CONV

from .shipped_families import H200, default_of, family, refuses_changed, verify

SM90 = "conv_implicit_gemm_sm90"
BASE: dict[str, int | str] = {
    "tile_m": 64,
    "tile_n": 64,
    "schedule": "cooperative",
    "window_rows": 0,
    "folded": 1,
    "epilogue_subtiles": 1,
}
PADDED = make_problem(
    CONV,
    {"n": 2, "c": 24, "h": 9, "w": 11, "k": 40, "r": 3, "s": 3, "pad_h": 1, "pad_h_end": 1, "pad_w": 1, "pad_w_end": 1}
    | {"dtype": "f16", "layout": "nhwc", "prologue": "scale_shift_relu", "epilogue": "bias_silu"},
)
"""Padding, which a shift would make nonzero."""
GATED = make_problem(
    CONV,
    {"n": 5, "c": 136, "h": 7, "w": 7, "k": 72, "r": 1, "s": 1}
    | {"dtype": "f16", "layout": "nhwc", "prologue": "scale", "epilogue": "bias_add_relu"},
)
"""Tiles of pixels of several images, and channels that no stage divides."""


def changed(problem: Problem, **values: int | str) -> Problem:
    """A problem of conv with other sizes or words."""
    return make_problem(CONV, {**problem.values, **values})


SHIFTED = changed(GATED, prologue="scale_shift_relu", epilogue="none", h=16, w=12, k=200)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [
        ("conv_mma_gemm", PADDED, {}),
        ("conv_mma_gemm", GATED, {"channel_slices": 2, "stages": 3, "filters": "staged"}),
        ("conv_mma_gemm", changed(GATED, dtype="bf16", prologue="scale_shift_silu"), {"images": 2}),
        (SM90, GATED, {"schedule": "pingpong", "tile_n": 72}),
        (SM90, changed(SHIFTED, n=3), {"tile_m": 192, "tile_n": 96}),
        (SM90, changed(GATED, dtype="bf16", prologue="scale_shift_silu", k=24), {"tile_n": 272}),
    ],
)
def test_inputs_are_scaled_before_they_are_multiplied(
    name: str, problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator
) -> None:
    default = default_of(name, problem)
    assert default is not None
    verify(name, problem, {**(BASE if name == SM90 else default.params), **values}, checked)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "change"),
    [
        ("conv_mma_gemm", PADDED, ("if (!inside) continue;", "")),
        (SM90, GATED, ("(first + own) / PIXELS * 8", "first / PIXELS * 8")),
    ],
)
def test_shifted_padding_and_factors_of_another_image_are_found(
    name: str, problem: Problem, change: tuple[str, str], host: DeviceEvaluator
) -> None:
    default = default_of(name, problem)
    assert default is not None
    assert refuses_changed(name, problem, BASE if name == SM90 else default.params, change, host)


def test_a_family_that_does_not_scale_is_refused() -> None:
    assert BoundTemplate(family("conv_split_k_sm90"), GATED, H200).unmet == "the problem has no scale"


@pytest.mark.parametrize("problem", [PADDED, GATED, SHIFTED])
def test_golden_values_agree_with_pytorch(problem: Problem) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    (samples,) = (each for each in golden(problem, 0).sets if each.integers)
    data = data_of(problem.with_runtime(*golden(problem, 0).sizes), integers=True)

    def operand(name: str) -> object:
        values = data[name].reshape(problem.with_runtime(*golden(problem, 0).sizes).array(name).shape)
        return torch.from_numpy(np.moveaxis(values.squeeze(1), -1, 1).copy() if values.ndim == 5 else values)

    given = [
        operand(name) if problem.has(name) else None for name in ("x", "w", "bias", "z", "cache", "scale", "shift")
    ]
    y = torch_conv.operators(problem, fused=False)(*given)
    np.testing.assert_allclose(y.movedim(1, -1).numpy().reshape(-1)[list(samples.indices)], samples.values)
