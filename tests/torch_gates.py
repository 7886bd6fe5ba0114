"""Squeeze-and-excitation and pools for the tests of PyTorch, and what these tests run in a host driver's process."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.autotune_runtime.torch_benchmark import Times, Work
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_convolution import TunedConvolution
from autotune.autotune_runtime.torch_layers import read_network
from autotune.autotune_runtime.torch_plain import Plain
from autotune.autotune_runtime.torch_swap import Row, libraries_of, swap
from autotune.autotune_runtime.torch_untuned import disagreements
from tests.torch_networks import ALWAYS, difference, seeded


class Gated(nn.Module):
    """Means, gates and pools of channels-last images, and the same operators on other tensors and in other forms."""

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(functional.adaptive_avg_pool2d(x, 1))
        y = torch.relu(gate * x)
        pooled = functional.avg_pool2d(functional.max_pool2d(y, 3, 2, 1), 3, 1, 1)
        others = functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False).sum()
        others += functional.avg_pool2d(y, 3, 1, divisor_override=2).sum()
        others += functional.max_pool2d(y, 2, ceil_mode=True).sum() + y.mean([1, 2]).sum() + (y * gate[:, :1]).sum()
        y *= gate
        return pooled.mean((2, 3)) + y.mean() + others + functional.adaptive_avg_pool2d(x, 2).sum()


class Excited(nn.Module):
    """A gate before a convolution, and one whose images another operator also reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(functional.adaptive_avg_pool2d(x, 1))
        y = torch.relu(self.conv(x * gate) + x)
        gated = y * gate
        return self.other(gated) + gated


class PreActivated(nn.Module):
    """A residual block whose batch norm and ReLU come before the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.norm.running_mean, self.norm.running_var = torch.linspace(-1, 1, 8), torch.linspace(0.5, 2, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x)
        return torch.relu(self.conv(torch.relu(self.norm(x))) + x)


def images(n: int) -> Tensor:
    """Channels-last images of eight channels."""
    x = torch.randn((n, 8, 5, 7), generator=torch.Generator().manual_seed(n))
    return x.contiguous(memory_format=torch.channels_last)


def converted(_: str, libraries: list[str], n: int) -> tuple[tuple[Row, ...], str, str, float]:
    """A converted network's report, its last line, its code, and the difference of outputs for n images."""
    made, report = convert(Gated().eval(), images(2), library=libraries, margin=ALWAYS)
    return report.rows, report.summary, str(getattr(made, "code", "")), difference(made, Gated(), images(n))


def excited(_: str, libraries: list[str], n: int) -> tuple[list[tuple[str, str, str]], str, float]:
    """A converted network's layers, their kernels and remarks, its code, and the difference of outputs."""
    network = seeded(Excited).bfloat16().to(memory_format=torch.channels_last)
    made, report = convert(network, images(2).bfloat16(), library=libraries, margin=ALWAYS)
    modules = [each for each in made.modules() if isinstance(each, (Plain, TunedConvolution))]
    bounds = {(each, each.problem.inputs[0][1:]): (2.0**-7, 0.0) for each in modules}
    assert not disagreements(made, [(images(2).bfloat16(),)], bounds)
    rows = [(row.layer, row.kernel, row.why if row.why.startswith("in ") else "") for row in report.rows]
    return rows, str(getattr(made, "code", "")), difference(made, network, images(n).bfloat16())


def raced(_: str, libraries: list[str], together_us: float) -> list[tuple[str, str, str]]:
    """A network's layers, their kernels and remarks, if the first convolution takes this long with the gate and 10 us
    without.
    """
    network = seeded(Excited).bfloat16().to(memory_format=torch.channels_last)
    read = read_network(network, images(2).bfloat16())
    layer = next(each for each in read.layers if each.name == "conv")
    race = f"{Work(layer.problems[0], layer.residual, layer.activation)!r}, kernels for each"
    times: dict[str, Times | None] = {race: Times(together_us, (("kernels for each", 10.0),))}
    report = swap(read, libraries_of(libraries), ALWAYS, times=times).report
    return [(row.layer, row.kernel, row.why.partition("; ")[2]) for row in report.rows]


def normed(_: str, libraries: list[str], n: int) -> tuple[list[tuple[str, str, str]], str, float]:
    """A converted block's layers, their kernels and remarks, its code, and the difference of outputs."""
    network = seeded(PreActivated).bfloat16().to(memory_format=torch.channels_last)
    made, report = convert(network, images(2).bfloat16(), library=libraries, margin=ALWAYS)
    rows = [(row.layer, row.kernel, row.why if row.why.startswith("in ") else "") for row in report.rows]
    return rows, str(getattr(made, "code", "")), difference(made, network, images(n).bfloat16())


def others(_: str, libraries: list[str]) -> list[float]:
    """Differences for other sizes, for another dtype, by Dynamo, and after the kernels are left to PyTorch."""
    made = convert(Gated().eval(), images(2), library=libraries, margin=ALWAYS)[0]
    found = [difference(made, Gated(), torch.randn(1, 8, 9, 10))]
    found.append(difference(copy.deepcopy(made).double(), Gated(), images(2).double()))
    found.append(difference(torch.compile(made, backend="aot_eager", fullgraph=True), Gated(), images(2)))
    modules = [each for each in made.modules() if isinstance(each, Plain)]
    assert not disagreements(made, [(images(2),)], {(each, each.problem.inputs[0][1:]): (1.0, 0.0) for each in modules})
    for each in modules:
        each.leave_to_pytorch()
    return [*found, difference(made, Gated(), images(2))]
