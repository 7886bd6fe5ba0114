"""Networks with concatenations for the tests of PyTorch, and what these tests run in the process of a host driver."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_plain import Concat
from autotune.autotune_runtime.torch_swap import Row
from autotune.autotune_runtime.torch_untuned import disagreements
from tests.torch_networks import ALWAYS, difference


class Dense(nn.Module):
    """A block of a DenseNet, whose concatenations of many tensors begin with the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shared = nn.BatchNorm2d(36), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for _ in range(9):
            parts.append(parts[-1].sin())
        first = torch.relu_(self.norm(torch.cat(parts[:9], 1)))
        both = torch.cat([x, first[:, :4]], 1)
        return first.sum() + torch.cat(parts, 1) + self.shared(both).sum() + both.sum()


class Channels(nn.Module):
    """Concatenations along the channels, of three and of nine tensors, and one along the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(9)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(torch.cat([x, x.sin(), x[:, :1]], 1)))
        return torch.cat([torch.cat([y] * 9, -3), y.new_zeros(2, 81, 5, 6)], 2)


class Overwritten(nn.Module):
    """Two long concatenations, between which one of the tensors changes."""

    def forward(self, x: Tensor) -> Tensor:
        parts = [x + each for each in range(9)]
        first = torch.cat(parts, 1)
        parts[0][:, :1].zero_()
        return first + torch.cat(parts, 1)


def images(n: int) -> Tensor:
    """Images of four channels."""
    x = torch.randn((n, 4, 3, 5), generator=torch.Generator().manual_seed(n))
    return x.contiguous(memory_format=torch.channels_last)


def dense() -> nn.Module:
    """The block with batch norms as in a trained one."""
    network, generator = Dense(), torch.Generator().manual_seed(1)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=generator)
    return network.eval()


def converted(library: str, n: int, margin: float = ALWAYS) -> tuple[tuple[Row, ...], str, str, float]:
    """A converted block's report, its last line, its code, and the difference of outputs for n images."""
    network = dense()
    made, report = convert(network, images(2), library=library, margin=margin)
    return report.rows, report.summary, str(getattr(made, "code", "")), difference(made, network, images(n))


def overwritten(library: str) -> float:
    """The difference of a network with a tensor that changes between two concatenations."""
    network = Overwritten().eval()
    made, _ = convert(network, images(2), library=library, margin=ALWAYS)
    return difference(made, network, images(2))


def others(library: str) -> list[float]:
    """Differences for other sizes, for another dtype, by Dynamo, and after the kernels are left to PyTorch."""
    network = dense()
    made, _ = convert(network, images(2), library=library, margin=ALWAYS)
    found = [difference(made, network, torch.randn(1, 4, 8, 10))]
    found.append(difference(copy.deepcopy(made).double(), copy.deepcopy(network).double(), images(2).double()))
    found.append(difference(torch.compile(made, backend="aot_eager", fullgraph=True), network, images(2)))
    modules = [each for each in made.modules() if isinstance(each, Concat)]
    assert not disagreements(made, [(images(2),)], {(each, each.problem.inputs[0][1:]): (1.0, 0.0) for each in modules})
    for each in modules:
        each.leave_to_pytorch()
    return [*found, difference(made, network, images(2))]
