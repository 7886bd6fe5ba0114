"""Additions after a PyTorch network's convolutions: which ones a kernel computes, which ones it leaves, and the
outputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.exporting import export_library
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.compiled import built_for_host
from tests.exports import chosen, kernel
from tests.host.host_driver import OnHostDriver, host_driver
from tests.unit.tiny import tiny

pytestmark = pytest.mark.cxx

pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_networks as networks  # noqa: E402
from tests import torch_residuals as residuals  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 convolutions, in units of the largest output."""
FIRST = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_add_relu")
AT_MOST_EIGHT = (
    ("epilogue == 'none'", "epilogue == 'bias_add_relu'"),
    ("[constraints]", '[constraints]\n"at most 8 images" = "n <= 8"'),
    ('["x", "w", "y", "n"]', '["x", "w", "bias", "z", "y", "n"]'),
    (
        "conv2d_tiny(const float* x, const float* w, float* y",
        "conv2d_tiny(const float* x, const float* w, const float* bias, const float* z, float* y",
    ),
    ("y[at] = sum;", "y[at] = fmaxf(sum + bias[map] + z[at], 0.0f);"),
)
"""The tiny family with an epilogue, for few images."""


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    blocks = replace(FIRST, c=4)
    unfused = replace(FIRST, k=3, epilogue="bias")
    last = replace(FIRST, c=2, layout="nhwc")
    pixels = Conv2dProblem(2, 4, 12, 12, 8, 1, 1, layout="nhwc", epilogue="bias")
    few = replace(FIRST, k=3, r=5, s=5, pad_h=2, pad_w=2)
    family = tiny(tmp_path_factory.mktemp("families"), *AT_MOST_EIGHT)
    config = Config("tiny", tuple((param.name, param.values[0]) for param in family.params))
    kernels = (
        kernel("direct", "bias", replace(FIRST, epilogue="bias")),
        kernel("direct", "before", replace(FIRST, epilogue="bias_relu")),
        kernel("direct", "add", replace(FIRST, epilogue="bias_add")),
        kernel("direct", "relu", FIRST),
        kernel("direct", "blocks", blocks),
        kernel("direct", "silu", replace(FIRST, epilogue="bias_add_silu")),
        kernel("direct", "unfused", unfused),
        kernel("implicit_gemm", "last", last),
        chosen(family, few, config, "few"),
        kernel("implicit_gemm", "wide", replace(pixels, epilogue="bias_gelu")),
        kernel("implicit_gemm", "narrow", replace(pixels, c=8, k=4, epilogue="bias_add")),
        kernel("implicit_gemm", "row", replace(pixels, h=1, w=144)),
    )
    exported = export_library(kernels, tmp_path_factory.mktemp("exported"), ())
    with host_driver(built_for_host(exported, tmp_path_factory.mktemp("built"), cxx=cxx)) as run:
        run(networks.support_cpu)
        yield run


@pytest.mark.parametrize("name", residuals.FUSED)
def test_an_addition_is_fused(name: str, on_cpu: OnHostDriver) -> None:
    expected = residuals.FUSED[name][1]
    assert on_cpu(residuals.epilogues, name, inference_mode=True) == expected
    rows, last, differences = on_cpu(residuals.converted, name)
    fused = {row.layer: row.problem.epilogue for row in rows if row.problem is not None}
    assert fused == expected
    assert [row.layer for row in rows if not row.swapped] == [layer for layer in expected if expected[layer] == "none"]
    counts = Counter(epilogue.count("add") for epilogue in expected.values())
    assert (f"{counts[1]} residual" in last) == (counts[1] > 0)
    assert max(differences) < CLOSE


@pytest.mark.parametrize("name", residuals.LEFT)
def test_an_addition_is_left(name: str, on_cpu: OnHostDriver) -> None:
    for inference_mode in (False, True):
        epilogues = on_cpu(residuals.epilogues, name, inference_mode=inference_mode)
        assert not any("add" in epilogue for epilogue in epilogues.values())
    _, last, differences = on_cpu(residuals.converted, name)
    assert "residual" not in last
    assert max(differences) < CLOSE


def test_the_report_says_what_is_fused(on_cpu: OnHostDriver) -> None:
    rows, last, _ = on_cpu(residuals.converted, "two blocks")
    assert last == "2 of 2 convolutions run tuned kernels; fused into them: 2 residuals, 2 ReLUs"
    assert "bias_add_relu" in rows[0].words
    assert all(row.why.endswith("PyTorch's with its residual and ReLU") for row in rows)


def test_a_kernel_without_the_addition_races_for_the_same_work(on_cpu: OnHostDriver) -> None:
    row, difference = on_cpu(residuals.unfused)
    assert (row.kernel, row.swapped) == ("tested.unfused", True)
    assert row.why.endswith("PyTorch's with its residual and ReLU")
    assert difference < CLOSE


def test_a_kernel_races_against_what_would_run_in_its_place(on_cpu: OnHostDriver) -> None:
    as_it_is = {"PyTorch's with its residual and SiLU"}
    assert on_cpu(residuals.rivals, compiled=False) == as_it_is
    assert on_cpu(residuals.rivals, compiled=True) == as_it_is | {"PyTorch's convolution and one kernel for the rest"}


def test_a_residual_in_nhwc(on_cpu: OnHostDriver) -> None:
    kernel, laid_out, difference = on_cpu(residuals.channels_last)
    assert (kernel, laid_out) == ("tested.last", True)
    assert difference < CLOSE


def test_linear_layers_are_convolutions_of_pixels(on_cpu: OnHostDriver) -> None:
    kernels, left, differences = on_cpu(residuals.linear_layers)
    assert kernels == {
        "wide": ("tested.wide", "bias_gelu"),
        "narrow": ("tested.narrow", "bias_add"),
        "first": ("tested.row", "bias"),
    }
    assert "aten.mul.Tensor" not in left, "the scale is folded"
    assert max(differences) < CLOSE


def test_compiled_network_is_one_graph_for_any_n(on_cpu: OnHostDriver) -> None:
    assert max(on_cpu(residuals.compiled)) < CLOSE


@pytest.mark.parametrize("part", ["relu", "dropout"])
def test_a_part_with_a_hook_is_called(part: str, on_cpu: OnHostDriver) -> None:
    fused, calls, difference = on_cpu(residuals.hooked, part)
    assert (fused, calls) == ("bias", 1)
    assert difference < CLOSE


def test_a_copy_is_converted_too(on_cpu: OnHostDriver) -> None:
    assert on_cpu(residuals.copied) < CLOSE


@pytest.mark.filterwarnings("ignore:autotune_runtime")
def test_as_many_images_as_the_kernel_refuses_go_through_pytorch(on_cpu: OnHostDriver) -> None:
    assert max(on_cpu(residuals.too_many)) < CLOSE


def test_a_residual_that_is_broadcast_later_is_refused(on_cpu: OnHostDriver) -> None:
    with pytest.raises(ValueError, match="the network was captured for other sizes: "):
        on_cpu(residuals.broadcast_later)


def test_operator_passes_pytorchs_own_checks(on_cpu: OnHostDriver) -> None:
    assert set(on_cpu(residuals.operator_checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize("how", ["misaligned", "strided", "autocast", "no images"])
def test_operator_takes_a_residual_that_is(how: str, on_cpu: OnHostDriver) -> None:
    assert on_cpu(residuals.operator, how) < CLOSE


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("gradients", "a tensor requires gradients, but the kernels have no backward pass"),
        ("channels", "z: has shape (4, 3, 12, 12), but k is 4"),
        ("images", "z: has shape (1, 4, 12, 12), but n is 4"),
        ("dtype", "z: is (4, 4, 12, 12), torch.float16 on cpu, expected (4, 4, 12, 12), torch.float32"),
        ("no bias", "z needs a bias"),
        ("activation", "epilogue = 'bias_add_softmax': expected one of none, bias"),
    ],
)
def test_operator_refuses_a_residual_that_does_not_fit(how: str, words: str, on_cpu: OnHostDriver) -> None:
    with pytest.raises((ValueError, RuntimeError), match=re.escape(words)):
        on_cpu(residuals.refused, how)
