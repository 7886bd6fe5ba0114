"""What is read of a network's convolutions, without a library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, nn  # noqa: E402

from autotune.autotune_conv2d.torch_layers import read_network  # noqa: E402


class SqueezeExcite(nn.Module):
    """As EfficientNet has it: a scale for each channel, of convolutions of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Conv2d(8, 2, 1)
        self.excite = nn.Conv2d(2, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y * torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))


class Normalising(nn.Module):
    """Writes to its images in a way that torch.fx takes for a new tensor, which nobody reads."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.when = when

    def forward(self, x: Tensor) -> Tensor:
        if self.when == "before":
            normalise(x)
        y = torch.relu(self.conv(x))
        if self.when == "after":
            normalise(x)
        return y


def normalise(x: Tensor) -> None:
    x -= 0.5


@pytest.mark.parametrize(("when", "is_taken"), [("before", False), ("after", False), ("never", True)])
def test_a_graph_that_leaves_out_what_is_written_in_place_is_not_taken(when: str, is_taken: bool) -> None:
    network = Normalising(when).eval()
    assert (read_network(network, (2, 3, 12, 12)).graph is not None) == is_taken


class Shared(nn.Module):
    """Cannot be traced, and has a convolution and its SiLU in two sequences, of which one runs."""

    def __init__(self, *, second: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU())
        self.second = nn.Sequential(*self.features, nn.ReLU()) if second else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) if x.sum() < 1e9 else self.second(x)


@pytest.mark.parametrize(("second", "activation"), [(False, "silu"), (True, "")])
def test_an_activation_stays_where_its_convolution_is_in_two_sequences(second: bool, activation: str) -> None:
    (layer,) = read_network(Shared(second=second).eval(), (2, 3, 12, 12)).layers
    assert layer.tail.activation == activation


class Noisy(nn.Module):
    """Draws random numbers: of a size that it knows, which torch.fx draws once and for all, or of its images' size."""

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(self.size) if self.size else torch.randn_like(x)
        return self.conv(x + noise)


@pytest.mark.parametrize(("size", "is_taken"), [((2, 3, 12, 12), False), ((1,), False), ((), True)])
def test_random_numbers_stay_random_and_to_come(size: tuple[int, ...], is_taken: bool) -> None:
    network = Noisy(size).eval()
    state = torch.get_rng_state()
    assert (read_network(network, (torch.ones(2, 3, 12, 12),)).graph is not None) == is_taken
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("memory_format", "layout"), [("channels_last", "nhwc"), ("contiguous_format", "nchw")])
def test_layers_of_one_pixel_have_the_networks_layout(memory_format: str, layout: str) -> None:
    """PyTorch calls their tensors both; a study gives them the network's."""
    network = SqueezeExcite().eval().to(memory_format=getattr(torch, memory_format))
    layers = read_network(network, (2, 3, 12, 12)).layers
    assert [layer.problem and layer.problem.layout for layer in layers] == [layout] * 3


def test_planes_are_nchw_though_their_filters_of_one_pixel_could_be_either() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)).eval()
    assert {layer.problem.layout for layer in read_network(network, (2, 3, 12, 12)).layers if layer.problem} == {"nchw"}
