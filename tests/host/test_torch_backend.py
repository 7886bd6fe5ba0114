"""torch.compile(backend="autotune"): which layers run kernels, the outputs, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points

import pytest

from autotune.exporting import export_library
from autotune.problem import Conv2dProblem
from tests.compiled import built_for_host
from tests.exports import kernel
from tests.host.host_driver import OnHostDriver, host_driver

pytestmark = pytest.mark.cxx

pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_backends as backends  # noqa: E402
from tests import torch_networks as networks  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 networks, in units of the largest output."""


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    first = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_relu")
    block = Conv2dProblem(4, 4, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_add_relu")
    small = replace(first, h=8, w=8)
    kernels = (kernel("direct", "first", first), kernel("direct", "block", block), kernel("direct", "small", small))
    exported = export_library(kernels, tmp_path_factory.mktemp("exported"), ())
    with host_driver(built_for_host(exported, tmp_path_factory.mktemp("built"), cxx=cxx)) as run:
        run(networks.support_cpu)
        yield run


def test_kernels_are_swapped_in_for_any_number_of_images(on_cpu: OnHostDriver) -> None:
    lines, differences = on_cpu(backends.reported)
    assert max(differences) < CLOSE
    rows = [line.split() for line in lines if line.startswith(("conv ", "layer1.0 ", "graph"))]
    assert [(row[0], row[3], row[4]) for row in rows[:2]] == [
        ("conv", "bias_relu", "tested.first"),
        ("layer1.0", "bias_add_relu", "tested.block"),
    ]
    assert sum("2 of 3 convolutions run tuned kernels" in line for line in lines) == 3, "4, any number, inference mode"
    assert all("1 residual, 2 ReLUs; 1 batch norms folded" in line for line in lines if " of 3 conv" in line)


def test_compiling_writes_neither_to_inputs_nor_to_buffers(on_cpu: OnHostDriver) -> None:
    assert max(on_cpu(backends.first_calls)) < CLOSE


@pytest.mark.parametrize("compiles", [True, False])
def test_one_network_serves_images_of_several_sizes(compiles: bool, on_cpu: OnHostDriver) -> None:
    found, graphs = on_cpu(backends.in_several_sizes, compiles=compiles)
    assert [count for count, _ in found] == [1, 2, 3], "kernels of the library's sizes, else PyTorch's convolution"
    assert max(difference for _, difference in found) < CLOSE
    assert graphs == int(compiles), "nothing is compiled again"


def test_a_kernel_serves_nobody_before_it_has_won_its_race(on_cpu: OnHostDriver) -> None:
    waits, names, difference = on_cpu(backends.in_a_race)
    assert waits == [True], "another thread waits"
    assert names.count("aten::convolution") == 1, "PyTorch computes a size whose race has no memory"
    assert "aten::copy_" not in names
    assert difference < CLOSE


@pytest.mark.parametrize(
    ("how", "told"), [("statistics", 1), ("loaded", 1), ("assigned", 1), ("linear alone", 0), ("nothing", 0)]
)
def test_changed_parameters_are_noticed(how: str, told: int, on_cpu: OnHostDriver) -> None:
    difference, said = on_cpu(backends.changed, how)
    assert difference < CLOSE
    assert said == told


def test_a_network_that_inference_mode_made_is_pytorchs(on_cpu: OnHostDriver) -> None:
    assert on_cpu(backends.changed_inference_tensors) < CLOSE


@pytest.mark.parametrize("how", ["filters are computed", "batch statistics", "no convolution", "a ReLU6 alone"])
def test_what_is_pytorchs_stays(how: str, on_cpu: OnHostDriver) -> None:
    assert on_cpu(backends.left, how) < CLOSE


@pytest.mark.parametrize("how", ["variable", "folder"])
def test_the_library_is_found(how: str, on_cpu: OnHostDriver) -> None:
    assert on_cpu(backends.found, how) < CLOSE


def test_pytorch_knows_the_backend_by_name(on_cpu: OnHostDriver) -> None:
    if not entry_points(group="torch_dynamo_backends", name="autotune"):
        pytest.skip("autotune is not installed with its entry points")
    assert on_cpu(backends.found, "by name") < CLOSE


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("gradients", "a tensor requires gradients, but the kernels have no backward pass; run under torch.no_grad()"),
        ("library", "there is no library /no/such/library.so"),
    ],
)
def test_what_cannot_be_compiled_is_said(how: str, words: str, on_cpu: OnHostDriver) -> None:
    assert words in on_cpu(backends.refused, how)


@pytest.mark.long
def test_inductor_plans_around_the_operator_without_copies(on_cpu: OnHostDriver) -> None:
    difference, calls = on_cpu(backends.planned)
    assert difference < CLOSE
    operator = "torch.ops.autotune_autotune_runtime.convolution.default"
    assert calls[:2] == [operator, operator], "nothing between the two"
    assert calls.count(operator) == 2
