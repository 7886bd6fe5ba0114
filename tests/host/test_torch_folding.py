"""Batch norms: which are folded into the convolution before them and which stay, with the same outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from autotune.autotune_runtime.torch_layers import read_network  # noqa: E402
from tests.torch_networks import Streaming, images, seeded  # noqa: E402
from tests.torch_residuals import normalising  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 networks, in units of the largest output."""


class Normalising(nn.Module):
    """A convolution and a batch norm, called in the way that `way` names."""

    def __init__(self, way: Callable[[Normalising, Tensor], Tensor], *, bias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1, groups=2, bias=bias)
        self.norm = normalising(6)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


class Branching(nn.Module):
    """Cannot be traced: its control flow depends on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), normalising(6), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) if x.sum() < 1e9 else x


def of(way: Callable[[Normalising, Tensor], Tensor], *, bias: bool = False) -> Callable[[], nn.Module]:
    return lambda: Normalising(way, bias=bias)


def hooked() -> nn.Module:
    network = Normalising(lambda m, x: m.norm(m.conv(x)))
    network.norm.register_forward_hook(lambda *given: given[-1] + 1)
    return network


def hooked_convolution() -> nn.Module:
    network = Normalising(lambda m, x: m.norm(m.conv(x)))
    network.conv.register_forward_hook(lambda *given: given[-1] + 1)
    return network


def read_besides(m: Normalising, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.norm(y) + y


class TwoPaths(nn.Module):
    """Has the same parts as attributes and in a sequence, and calls them through one of the two."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, bias=False)
        self.norm = normalising(6)
        self.features = nn.Sequential(self.conv, self.norm)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) if self.way == "sequence" else self.norm(self.conv(x))


class Listed(nn.Module):
    """Calls its batch norm from a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), normalising(6))
        self.parts = [*self.features]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Tied(Branching):
    """Also reads its filters."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv_transpose2d(super().forward(x), self.features[0].weight)


class Scaled(Branching):
    """Also reads one of its filters, as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.features[1].weight.data.mul_(4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.features[0].weight.tolist()[0][0][0][0]


FOLDED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "alone": (of(lambda m, x: m.norm(m.conv(x))), ("conv",)),
    "behind a bias": (of(lambda m, x: torch.relu(m.norm(m.conv(x))), bias=True), ("conv",)),
    "twice": (of(lambda m, x: m.norm(m.norm(m.conv(x)))), ("conv", "conv")),
    "no trace": (Branching, ("features.0",)),
    "by a second path": (lambda: TwoPaths("sequence"), ("features.0",)),
    "by the first path": (lambda: TwoPaths("attributes"), ("features.0",)),
    "by keyword": (of(lambda m, x: m.norm(input=m.conv(input=x))), ("conv",)),
    "by a list": (Listed, ("features.0",)),
    "no scale": (lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, affine=False)), ("0",)),
}
KEPT: dict[str, Callable[[], nn.Module]] = {
    "read besides": of(read_besides),
    "before the convolution": lambda: nn.Sequential(normalising(2), nn.Conv2d(2, 3, 1)),
    "hooked": hooked,
    "hooked convolution": hooked_convolution,
    "filters are read": of(lambda m, x: m.norm(m.conv(x)) * m.conv.weight.sum()),
    "an activation between": of(lambda m, x: m.norm(torch.relu(m.conv(x)))),
    "filters are read, no trace": Tied,
    "filters are read, no trace, half precision": lambda: Tied().bfloat16(),
    "filters are read as numbers": Scaled,
    "no statistics": lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
}


@torch.no_grad()
def difference(network: nn.Module, other: nn.Module) -> float:
    x = images(3, 2).to(next(network.parameters()).dtype)
    expected = network(x)
    return float((other(x) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_norm_is_folded(name: str) -> None:
    made, convs = FOLDED[name]
    network = made().eval()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    found = read_network(network, images(3, 2))
    assert found.folded == convs
    copy = found.finish()
    assert "batch_norm" not in str([each.graph for each in copy.modules() if isinstance(each, fx.GraphModule)])
    assert difference(network, copy) < CLOSE
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items()), "the original stays"


@pytest.mark.parametrize("name", KEPT)
def test_a_batch_norm_is_kept(name: str) -> None:
    network = KEPT[name]().eval()
    found = read_network(network, images(3, 2).to(next(network.parameters()).dtype))
    assert found.folded == ()
    assert difference(network, found.finish()) == 0


@torch.no_grad()
def test_a_copy_begins_where_the_original_is_and_the_example_stays() -> None:
    network, x = seeded(Streaming), images(4)
    copy = read_network(network, x).finish()
    assert torch.equal(x, images(4))
    for name in ("past", "calls"):
        assert torch.equal(copy.get_buffer(name), network.get_buffer(name))
    assert torch.allclose(copy(images(4)), network(images(4)), atol=CLOSE)


def test_half_precision_is_folded_in_double() -> None:
    """In half precision the epsilon of 1e-8 is 0."""
    network = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, eps=1e-8)).eval()
    network[1].running_var.zero_()
    network[0].weight.data.mul_(1e-3)
    network[0].bias.data.zero_()
    copy = read_network(network.half(), images(3, 2).half()).finish()
    assert difference(network.float(), copy.float()) < 1e-2


def test_filters_stay_channels_last_and_so_does_an_example_of_sizes() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval().to(memory_format=torch.channels_last)
    found = read_network(network, (3, 2, 12, 12))
    copy, (x,) = found.finish(), found.arguments
    assert isinstance(x, Tensor)
    for tensor in (copy.get_submodule("0").weight, x, copy(x)):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()


def test_a_kernel_takes_the_bias_and_what_follows_a_batch_norm() -> None:
    (layer,) = read_network(Branching().eval(), (4, 2, 12, 12)).layers
    assert layer.problems[0].epilogue == "bias_silu"


@torch.no_grad()
@pytest.mark.parametrize("mean", [3.0, 300.0])
def test_a_batch_norm_in_front_of_a_convolution_is_accurate_with_any_mean(mean: float) -> None:
    """A kernel for both reads the norm's scale and shift in 16 bits, which is only accurate for small means."""
    norm, conv = nn.BatchNorm2d(64), nn.Conv2d(64, 8, 1)
    norm.running_mean += mean * torch.linspace(0.5, 1, 64)
    norm.running_var += torch.linspace(0, 1, 64)
    network = nn.Sequential(norm, nn.ReLU(), conv).eval().half().to(memory_format=torch.channels_last)
    x = (torch.randn(2, 6, 6, 64) + norm.running_mean).half().movedim(-1, 1)
    last = read_network(network, x).layers[-1]
    assert last.fused is not None
    assert last.module is not None
    normed, expected = (part(x.double()) for part in (network.double()[:2], network))
    y = last.module(normed.half() if last.fused.front is None else x)
    assert (y - expected).norm() / expected.norm() < 2e-3
    assert (last.fused.front is None) == (mean > 32)
