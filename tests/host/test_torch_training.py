"""Training a PyTorch network by exported kernels, which run on the CPU here: gradients, losses, and refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.exporting import export_library
from autotune.importing.study_text import named_layers
from autotune.importing.torch_module import graph_of_module
from autotune.importing.training import training_findings
from autotune.problem import Problem, make_problem
from tests.compiled import built_for_host
from tests.exports import kernel
from tests.host.host_driver import OnHostDriver, host_driver

pytestmark = pytest.mark.cxx

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, nn  # noqa: E402

from autotune.autotune_runtime.convolution import Geometry  # noqa: E402
from autotune.autotune_runtime.convolution import Problem as TorchProblem  # noqa: E402
from autotune.autotune_runtime.torch_gradients import Parts, TrainedLayer, gradients_of, trained_convolution  # noqa: E402
from tests import torch_training as training  # noqa: E402

TF32 = 5e-3
"""Difference of gradients in TF32 from float64, in units of the largest element."""
PARTS = [
    *("first, output", "first, filter gradient"),
    *("strided, output", "strided, data gradient", "strided, filter gradient"),
    *("grouped, output", "grouped, data gradient", "grouped, filter gradient"),
]
PAIR_PARTS = [
    *("0, output", "0, filter gradient"),
    *("1, output", "1, data gradient", "1, filter gradient"),
    *("2, output", "2, data gradient", "2, filter gradient"),
]
FAMILIES = {
    "conv2d": "implicit_gemm",
    "conv_transpose": "conv_transpose_direct",
    "conv_filter_gradient": "conv_filter_gradient_mma",
}
DEPTHWISE = {
    "conv2d": "depthwise_nhwc",
    "conv_transpose": "conv_transpose_depthwise_phases",
    "conv_filter_gradient": "conv_filter_gradient_depthwise",
}


def listed() -> list[Problem]:
    """The problems that import-model --training lists for some networks, and the problems of one in bfloat16."""
    images, signals = (4, 3, 8, 8), (4, 3, 64)
    small = of_network(training.small(), images)
    residual = of_network(training.residual(), images)
    of_signals = [each for each in of_network(training.signals(), signals) if each.has("dw")]
    problems = [*small, *residual, *of_network(training.pair(), images), *of_signals]
    problems += [
        make_problem(each.operation, {**each.values, "epilogue": "none"})  # for frozen filters
        for each in residual
        if each.values.get("epilogue") == "add_masked"
    ]
    perceptron = of_network(training.perceptron(), images)
    problems += [each for each in perceptron if str(each.values.get("epilogue")).startswith("derivative")]
    problems += [make_problem(each.operation, {**each.values, "dtype": "bf16"}) for each in small]
    return [*dict.fromkeys(problems)]


def of_network(network: nn.Module, shape: tuple[int, ...]) -> list[Problem]:
    """The problems that import-model --training lists."""
    network = network.eval().to(memory_format=torch.contiguous_format)
    graph = graph_of_module(network, [shape], layout="nhwc")
    return [each.problem for each in named_layers([training_findings(graph)])]


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    """Libraries of three operations in one folder, as `export` writes them for a study."""
    folder, sources = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("sources")
    problems = listed()
    for operation, name in FAMILIES.items():
        of_operation = [problem for problem in problems if problem.operation.name == operation]
        names = [DEPTHWISE[operation] if each.values["groups"] == 16 else name for each in of_operation]
        kernels = [
            kernel(name, f"l{at}", each) for at, (name, each) in enumerate(zip(names, of_operation, strict=True))
        ]
        if operation == "conv2d":
            first = make_problem(of_operation[0].operation, {**of_operation[0].values, "layout": "nchw"})
            kernels.append(kernel("direct", "constant", first, filters="constant"))
        exported = export_library(kernels, sources / operation, ())
        (folder / operation / "build").mkdir(parents=True)
        built = built_for_host(exported, folder / operation / "build", cxx=cxx)
    with host_driver(built) as run:
        run(training.support_training)
        yield run


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_gradients_are_those_of_finite_differences(kind: type[nn.Conv2d | nn.ConvTranspose2d]) -> None:
    torch.manual_seed(1)
    conv = kind(4, 6, 3, 2, 1, dilation=2, groups=2).double()
    x = torch.randn(2, 4, 9, 8, dtype=torch.double, requires_grad=True)
    y = conv(x)
    shapes = (tuple(x.shape), tuple(conv.weight.shape), tuple(y.shape))
    geometry = Geometry(*shapes, (2, 2), (1, 1), (1, 1), (2, 2), 2, conv.transposed)
    problem = TorchProblem(geometry)
    parts = Parts(problem.operation, tuple(problem.arguments.items()))
    layer = replace(TrainedLayer.of(problem, parts), dtype=torch.double)

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return trained_convolution(x, weight, bias, layer, layer.by_pytorch)

    assert torch.autograd.gradcheck(run, (x, conv.weight, conv.bias))


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("part", ["data", "filters"])
def test_pytorch_computes_one_gradient_without_a_copy_to_another_layout(part: str, kernel_size: int) -> None:
    last = torch.channels_last
    conv = torch.nn.Conv2d(8, 6, kernel_size, bias=False).to(memory_format=last)
    x, weight = torch.randn(2, 8, 9, 8).to(memory_format=last), conv.weight.detach()
    dy = conv(x).detach()
    shapes = (tuple(x.shape), tuple(weight.shape), tuple(dy.shape))
    problem = TorchProblem(Geometry(*shapes, (1, 1), (0, 0), (0, 0), (1, 1), 1, layout="nhwc"))
    parts = Parts(problem.operation, tuple(problem.arguments.items()))
    with training.Operands(torch.ops.aten.convolution_backward.default) as found:
        gradients_of(dy, x if part == "filters" else x.shape, weight if part == "data" else weight.shape, parts)
    assert [each.is_contiguous(memory_format=last) for each in found.tensors] == [True] * 3


def test_every_part_of_every_convolution_runs_a_kernel(on_cpu: OnHostDriver) -> None:
    rows, summary, names, same, difference = on_cpu(training.converted)
    assert rows == [(part, "tested", True) for part in PARTS]
    assert summary == "tuned kernels compute 3 of 3 outputs, 3 of 3 filter gradients, 2 of 2 data gradients"
    assert names == [name for name, _ in training.small().named_parameters()]
    assert same, "the original's parameters and statistics"
    assert difference < TF32


def test_kernels_with_filters_in_constant_memory_do_not_train(on_cpu: OnHostDriver) -> None:
    why = "keeps its filters in constant memory, which each step would have to fill again"
    assert on_cpu(training.of_constant_filters) == ["tested.constant", why]


def test_depthwise_and_transposed_convolutions_are_trained(on_cpu: OnHostDriver) -> None:
    rows, converted, by_backend = on_cpu(training.of_pair)
    assert rows == [(part, "tested", True) for part in PAIR_PARTS]
    assert converted < TF32
    assert by_backend < TF32


def test_filters_of_signals_are_trained_as_those_of_images_of_one_row(on_cpu: OnHostDriver) -> None:
    parts, difference = on_cpu(training.of_signals)
    assert parts == ["0, filter gradient", "2, filter gradient"]
    assert difference < TF32


def test_frozen_filters_get_no_gradient(on_cpu: OnHostDriver) -> None:
    names, difference = on_cpu(training.frozen)
    assert names == [name for name, _ in training.small().named_parameters() if name != "strided.weight"]
    assert difference < TF32


def test_gradients_accumulate(on_cpu: OnHostDriver) -> None:
    assert on_cpu(training.accumulated) < 1e-6


def test_gradients_are_the_same_bits_twice(on_cpu: OnHostDriver) -> None:
    assert on_cpu(training.twice) == (0, True)


def test_second_derivatives_are_refused(on_cpu: OnHostDriver) -> None:
    words = "a tuned convolution has no second derivatives; do not use create_graph=True"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        on_cpu(training.second_derivatives)


def test_second_derivatives_of_a_compiled_network_are_refused(on_cpu: OnHostDriver) -> None:
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        on_cpu(training.compiled_second_derivatives)


def test_a_training_follows_pytorchs(on_cpu: OnHostDriver) -> None:
    ours, theirs = on_cpu(training.losses)
    assert sum(theirs[-5:]) < sum(theirs[:5]) / 2, "it learns"
    assert ours == pytest.approx(theirs, abs=0.05)
    assert ours != theirs, "kernels compute in TF32"


def test_it_compiles_without_graph_breaks(on_cpu: OnHostDriver) -> None:
    converted, lines, by_backend = on_cpu(training.compiled)
    assert converted < TF32
    assert lines[-1] == "tuned kernels compute 3 of 3 outputs, 3 of 3 filter gradients, 2 of 2 data gradients"
    assert by_backend < TF32


@pytest.mark.parametrize(("how", "epilogue"), [("trained", "add_masked"), ("frozen", "none")])
def test_the_gradients_of_all_readers_of_a_relu_are_added_and_masked(
    how: str, epilogue: str, on_cpu: OnHostDriver
) -> None:
    epilogues, difference = on_cpu(training.by_epilogues, "residual", how)
    assert epilogues == [("branch,", epilogue)]
    assert difference < TF32


def test_gradients_are_multiplied_by_the_derivative_of_the_activation_before(on_cpu: OnHostDriver) -> None:
    epilogues, difference = on_cpu(training.by_epilogues, "perceptron")
    assert epilogues == [("second,", "derivative_silu"), ("narrow,", "derivative_gelu")]
    assert difference < TF32


def test_under_autocast_kernels_compute_in_its_dtype(on_cpu: OnHostDriver) -> None:
    swapped, dtypes, ours, theirs = on_cpu(training.under_autocast)
    assert swapped == [True] * len(PARTS)
    assert dtypes == {torch.float32}, "as the parameters"
    assert ours < 1.5 * theirs


def test_images_of_other_sizes_are_pytorchs(on_cpu: OnHostDriver) -> None:
    assert on_cpu(training.other_sizes) < 1e-5


def test_an_empty_batch_has_a_gradient_of_zero(on_cpu: OnHostDriver) -> None:
    assert on_cpu(training.without_images) == 0


def test_the_operator_passes_pytorchs_own_checks(on_cpu: OnHostDriver) -> None:
    assert set(on_cpu(training.checked).values()) == {"SUCCESS"}


def test_two_processes_train_together(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    between, from_pytorch = on_cpu(training.distributed, str(tmp_path))
    assert between == 0
    assert from_pytorch < TF32
