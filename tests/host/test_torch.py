"""PyTorch networks on an exported library, which runs on the CPU here: conversion and the operator's rules.

tests/gpu/test_torch_operator.py tests streams, CUDA graphs, several devices and speed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from autotune.exporting import export_library
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.compiled import built_for_host
from tests.exports import chosen, kernel
from tests.host.host_driver import OnHostDriver, host_driver
from tests.unit.tiny import tiny

pytestmark = pytest.mark.cxx

torch = pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_networks as networks  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 convolutions, in units of the largest output."""
FIRST = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_relu")


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    second = Conv2dProblem(4, 4, 6, 6, 6, 3, 3, epilogue="bias_relu")
    bias = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias")
    strided = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, 2, 2)
    last = Conv2dProblem(4, 2, 12, 12, 4, 3, 3, layout="nhwc")
    tf32 = Conv2dProblem(4, 1, 12, 12, 8, 3, 3)
    padded = Conv2dProblem(4, 1, 14, 14, 4, 3, 3, epilogue="bias")
    same = Conv2dProblem(4, 1, 12, 12, 1, 3, 3, pad_h=1, pad_w=1, epilogue="bias")
    wrong = Conv2dProblem(4, 1, 12, 12, 4, 7, 7, epilogue="bias")
    few = Conv2dProblem(4, 1, 12, 12, 4, 5, 5)
    limit = ("[constraints]", '[constraints]\n"at most 8 images" = "n <= 8"')
    family = tiny(tmp_path_factory.mktemp("families"), limit)
    kernels = (
        chosen(family, few, Config("tiny", tuple((param.name, param.values[0]) for param in family.params)), "few"),
        kernel("direct", "first", FIRST, filters="constant"),
        kernel("im2col_gemm", "second", second, fusion="two_kernels"),
        kernel("direct", "bias", bias),
        kernel("direct", "strided", strided),
        kernel("direct", "padded", padded),
        kernel("direct", "same", same),
        kernel("implicit_gemm", "last", last),
        kernel("mma_strip", "tf32", tf32, precision="tf32"),
        kernel("direct", "wrong", wrong),
        kernel("direct", "one", Conv2dProblem(1, 1, 4, 4, 1, 1, 1, epilogue="bias_relu")),
    )
    exported = export_library(kernels, tmp_path_factory.mktemp("exported"), ())
    source = exported.folder / "tested.wrong.cu"
    text = source.read_text()
    assert text.count("EPILOGUE = Epilogue<true, false, identity>;") == 1
    source.write_text(
        text.replace("EPILOGUE = Epilogue<true, false, identity>;", "EPILOGUE = Epilogue<false, false, identity>;")
    )
    built = built_for_host(exported, tmp_path_factory.mktemp("built"), cxx=cxx)
    with host_driver(built) as run:
        run(networks.support_cpu)
        yield run


@pytest.mark.parametrize("n", [4, 1, 7])
def test_network_with_functions_becomes_a_graph_without_its_relus(n: int, on_cpu: OnHostDriver) -> None:
    kind, rows, relus, difference = on_cpu(networks.converted, "Digits", n)
    assert (kind, relus) == ("GraphModule", 0)
    assert [(row.layer, row.kernel, row.swapped) for row in rows] == [
        ("conv1", "tested.first", True),
        ("conv2", "tested.second", True),
    ]
    assert all("PyTorch's with its ReLU" in row.why for row in rows)
    assert difference < CLOSE


@pytest.mark.parametrize(
    ("name", "kernel", "kind", "relus"),
    [
        ("Branching", "tested.first", "Branching", 0),
        ("ReadTwice", "tested.bias", "GraphModule", 1),
        ("ReadTwiceInSequence", "tested.bias", "ReadTwiceInSequence", 1),
        ("SharedPart", "tested.bias", "SharedPart", 1),
    ],
)
def test_relu_is_fused_where_it_alone_reads_the_output(
    name: str, kernel: str, kind: str, relus: int, on_cpu: OnHostDriver
) -> None:
    made, rows, left, difference = on_cpu(networks.converted, name, 4)
    assert (made, left) == (kind, relus)
    assert [(row.kernel, row.swapped) for row in rows] == [(kernel, True)]
    assert difference < CLOSE


def test_kernels_that_compute_something_else_on_the_example_are_left(on_cpu: OnHostDriver) -> None:
    errors, before, after = on_cpu(networks.disagreeing)
    assert list(errors) == ["conv1"]
    assert 10 < errors["conv1"] < 1000, "a thousandth, where the bound allows a millionth of all terms"
    assert before > 10 * CLOSE
    assert after < CLOSE


def test_a_convolution_is_swapped_at_every_path(on_cpu: OnHostDriver) -> None:
    layer, swapped, parts, difference = on_cpu(networks.by_two_paths)
    assert (layer, swapped) == ("conv", True)
    assert parts == ["TunedConvolution", "TunedConvolution"]
    assert difference < CLOSE


def test_a_convolution_that_runs_twice_is_swapped_twice(on_cpu: OnHostDriver) -> None:
    layers, names, difference = on_cpu(networks.run_twice)
    assert layers == [("1", True), ("1", True)]  # PyTorch takes the last path of a module with two paths
    assert names == {"1.weight", "1.bias", "1_2.weight", "1_2.bias"}
    assert difference < CLOSE


def test_a_residual_is_part_of_the_race_of_one_convolution(on_cpu: OnHostDriver) -> None:
    _, rows, _, difference = on_cpu(networks.converted, "Residual", 4)
    assert [row.layer for row in rows] == ["conv", "shortcut"]
    assert rows[0].why.endswith("PyTorch's convolution")
    assert rows[1].why.endswith("PyTorch's with its residual and ReLU")
    assert [row.kernel for row in rows] == ["tested.bias"] * 2, "the kernels have neither the addition nor the ReLU"
    assert difference < CLOSE


def test_kernels_that_are_not_faster_by_the_margin_are_left(on_cpu: OnHostDriver) -> None:
    lines = on_cpu(networks.table).splitlines()
    assert lines[0].split() == ["layer", "x", "filters", "epilogue", "kernel", "tuned", "us", "PyTorch", "us", "why"]
    for line, words in zip(
        lines[1:], (["conv1", "4x1x12x12", "4x1x3x3", "bias_relu", "tested.first"], ["conv2"]), strict=False
    ):
        assert line.split()[: len(words)] == words
        assert re.search(r"left +(takes )?\d+\.\d\d times as (long|fast) as PyTorch's with its ReLU", line)
    assert lines[-1] == "0 of 2 convolutions run tuned kernels"


@pytest.mark.parametrize("name", ["strided", "same", "channels last", "tf32", "reflecting", "subclass"])
def test_convolution_is_swapped(name: str, on_cpu: OnHostDriver) -> None:
    swapped, why, difference = on_cpu(networks.one_convolution, name)
    assert swapped, why
    assert difference < (1e-2 if name == "tf32" else CLOSE)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("one-sided", "there is no library of conv"),
        ("hooked", "has forward hooks"),
        ("unknown", "the library has no kernel for this problem"),
        ("wrong", "computes something different from PyTorch"),
        ("listed", "is in no part of the network that torch.export captures and that ran once"),
    ],
)
def test_convolution_is_left_and_why(name: str, why: str, on_cpu: OnHostDriver) -> None:
    swapped, said, difference = on_cpu(networks.one_convolution, name)
    assert not swapped
    assert said.startswith(why)
    assert difference == 0


@pytest.mark.parametrize("switch", ["allow_tf32", "fp32_precision"])
def test_tf32_must_be_allowed(switch: str, on_cpu: OnHostDriver) -> None:
    if switch == "fp32_precision" and not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this PyTorch has the older switch alone")
    why = on_cpu(networks.tf32_forbidden, switch)
    assert why == "computes in TF32, which torch.backends does not allow for it"


@pytest.mark.parametrize("compiles", [False, True])
def test_as_many_images_as_the_kernel_refuses_go_through_pytorch(compiles: bool, on_cpu: OnHostDriver) -> None:
    kernel, differences, told = on_cpu(networks.too_many, compiles=compiles)
    assert kernel == "tested.few"
    assert max(differences) < CLOSE
    (words,) = told
    assert words.startswith("autotune_runtime: PyTorch's convolution runs instead: the library has no kernel for this ")
    assert words.endswith("at most 8 images)")


def test_compiled_network_is_one_graph_for_any_n(on_cpu: OnHostDriver) -> None:
    assert max(on_cpu(networks.compiled)) < CLOSE


def test_operator_passes_pytorchs_own_checks(on_cpu: OnHostDriver) -> None:
    answers = on_cpu(networks.operator_checks)
    assert len(answers) == 4
    assert set(answers.values()) == {"SUCCESS"}


def test_autocast_keeps_the_kernels_dtype(on_cpu: OnHostDriver) -> None:
    dtype, difference = on_cpu(networks.under_autocast)
    assert dtype == "torch.float32"
    assert difference < CLOSE


@pytest.mark.parametrize("how", ["in place", "bias alone", "loaded", "assigned", "pickled", "copied", "cast"])
def test_filters_are_those_of_now(how: str, on_cpu: OnHostDriver) -> None:
    assert on_cpu(networks.changed, how) < CLOSE


def test_filters_are_those_of_now_where_a_network_is_converted_in_inference_mode(on_cpu: OnHostDriver) -> None:
    difference, swapped = on_cpu(networks.changed_in_inference_mode)
    assert swapped
    assert difference < CLOSE


def test_filters_that_are_inference_tensors_go_through_pytorch(on_cpu: OnHostDriver) -> None:
    difference, told = on_cpu(networks.inference_tensors)
    assert difference < CLOSE
    assert [words.partition(", ")[0] for words in told] == [
        "autotune_runtime: PyTorch's convolution runs instead: the weights are inference tensors"
    ]


def test_the_operator_takes_filters_that_are_inference_tensors(on_cpu: OnHostDriver) -> None:
    assert on_cpu(networks.once) < CLOSE


def test_threads_that_meet_at_a_first_call_run_the_kernel(on_cpu: OnHostDriver) -> None:
    assert on_cpu(networks.at_once) == 0


def test_nothing_is_prepared_or_freed_in_a_capture_nor_what_was_captured(on_cpu: OnHostDriver) -> None:
    handles, refused, difference = on_cpu(networks.captured)
    first = handles[0]
    assert handles == [first] * 5 + [first + 2]  # two convolutions again, and as they were captured
    assert len(refused) == 2
    assert all("weights cannot be prepared while a graph is captured" in words for words in refused)
    assert difference < CLOSE


def test_a_call_costs_the_cpu_no_more_than_pytorchs(on_cpu: OnHostDriver) -> None:
    ours_us, theirs_us = on_cpu(networks.call_costs)
    assert 0 < ours_us < theirs_us


def test_profilers_and_modes_see_the_operator(on_cpu: OnHostDriver) -> None:
    names = on_cpu(networks.listened)
    assert names == ["autotune_autotune_runtime::convolution"] * 4, "two convolutions, seen twice"


def test_filters_are_freed_with_their_network(on_cpu: OnHostDriver) -> None:
    assert on_cpu(networks.forgotten) == (2, 0)


@pytest.mark.parametrize("name", ["strided", "channels last"])
def test_no_images_give_no_outputs(name: str, on_cpu: OnHostDriver) -> None:
    made, expected = on_cpu(networks.without_images, name)
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
    assert made.shape[0] == 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("convert", "the network is in training mode; call eval() first"),
        ("convert a part", "its part conv2 is in training mode; call eval() first"),
        ("train", "a TunedConvolution is for inference only"),
        ("images", "a tensor requires gradients, but the kernels have no backward pass; run under torch.no_grad()"),
        ("compiled", "a tensor requires gradients, but the kernels have no backward pass"),
        ("filters", "a tensor requires gradients, but the kernels have no backward pass"),
    ],
)
def test_training_is_refused(how: str, words: str, on_cpu: OnHostDriver) -> None:
    with pytest.raises(RuntimeError, match=re.escape(words)):
        on_cpu(networks.trained, how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("three dimensions", "x: has shape (1, 12, 12), expected [n, c, h, w]"),
        ("dtypes", "w: is (4, 1, 3, 3), torch.float32 on cpu, expected (4, 1, 3, 3), torch.float16 on cpu"),
        ("channels", "w: is (4, 1, 3, 3), torch.float32 on cpu, expected (4, 2, 3, 3), torch.float32 on cpu"),
        ("no bias", "relu needs a bias"),
        ("bias", "bias: has shape (3,), but k is 4"),
        ("no kernel", "the library has no kernel for this problem"),
    ],
)
def test_operator_says_what_does_not_fit(how: str, words: str, on_cpu: OnHostDriver) -> None:
    with pytest.raises((ValueError, RuntimeError), match=re.escape(words)):
        on_cpu(networks.refused, how)
