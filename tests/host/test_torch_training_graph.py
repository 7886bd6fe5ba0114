"""Batch norms and max pools of a graph in training, against PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, fx, nn  # noqa: E402
from torch._dynamo import lookup_backend  # noqa: E402
from torch.nn import functional  # noqa: E402

from autotune.autotune_runtime.torch_training_norms import normalized, rewrite_norms  # noqa: E402
from autotune.autotune_runtime.torch_training_pools import pooled, rewrite_pools  # noqa: E402


class Block(nn.Module):
    """Batch norms before a ReLU, an addition and a ReLU, an addition alone, another activation, and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.shortcut, self.third, self.fourth, self.frozen = (
            nn.BatchNorm2d(4, momentum=0.2) for _ in range(6)
        )
        for at, each in enumerate(self.children()):
            nn.init.normal_(each.weight, 1, 0.3)
            nn.init.normal_(each.bias, at / 5, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first(x), inplace=True)
        z = self.second(y)
        z += self.shortcut(x)
        z = functional.relu(z)
        z = z + self.third(z * 2)
        return self.frozen(functional.silu(self.fourth(z)))


def trained(run: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The gradients and the statistics after two steps on the same images."""
    x = x.clone().requires_grad_()
    for _ in range(2):
        run(x).square().mul(torch.linspace(-1, 2, 6)).sum().backward()
    return {"x": x.grad, **network.state_dict()} | {name: each.grad for name, each in network.named_parameters()}


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_gradients_and_statistics_are_pytorchs(memory_format: object) -> None:
    torch.manual_seed(5)
    network = Block().double()
    network.frozen.eval()
    ours = copy.deepcopy(network)
    rewritten: list[tuple[bool, bool]] = []

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        rewrite_norms(graph)
        for node in graph.graph.find_nodes(op="call_function", target=normalized):
            rewritten.append((node.args[7] is not None, node.args[8]))
        compiled: Callable[..., object] = lookup_backend("aot_eager")(graph, inputs)
        return compiled

    torch.compiler.reset()
    x = torch.randn(5, 4, 7, 6, dtype=torch.double).contiguous(memory_format=memory_format) + 3
    found = trained(torch.compile(ours, backend=backend, fullgraph=True), ours, x)
    for name, each in trained(network, network, x).items():
        torch.testing.assert_close(found[name], each, rtol=1e-9, atol=1e-9, msg=name)
    assert rewritten == [(False, True), (False, False), (True, True), (False, False), (False, False)]


@pytest.mark.parametrize("size", [(8, 12), (7, 12)])
def test_gradients_of_a_max_pool_are_pytorchs(size: tuple[int, int]) -> None:
    torch.manual_seed(5)
    pool = nn.MaxPool2d(3, 2, 1)
    rewritten: list[bool] = []

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        rewrite_pools(graph)
        rewritten.append(bool(graph.graph.find_nodes(op="call_function", target=pooled)))
        compiled: Callable[..., object] = lookup_backend("aot_eager")(graph, inputs)
        return compiled

    torch.compiler.reset()
    x = torch.randint(0, 4, (3, 5, *size)).float().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = torch.compile(pool, backend=backend, fullgraph=True)(x)
    weights = torch.randint(-4, 5, y.shape).float()  # whose sums are exact
    (found,) = torch.autograd.grad(y, x, weights)
    (expected,) = torch.autograd.grad(pool(x), x, weights)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    assert rewritten == [size == (8, 12)]
