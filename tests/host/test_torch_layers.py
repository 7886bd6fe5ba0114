"""Which layers are read from a network, without a library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from autotune.autotune_runtime.convolution import Problem  # noqa: E402
from autotune.autotune_runtime.torch_convolution import Convolution  # noqa: E402
from autotune.autotune_runtime.torch_layers import read_network  # noqa: E402
from autotune.importing.fused_layers import findings  # noqa: E402
from autotune.importing.torch_module import graph_of_module  # noqa: E402


class SqueezeExcite(nn.Module):
    """As in EfficientNet: a scale for each channel, computed by convolutions of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Conv2d(8, 2, 1)
        self.excite = nn.Conv2d(2, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y * torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))


class Normalising(nn.Module):
    """Writes to its images in a statement of a function."""

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


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_what_is_written_in_place_is_written_by_a_captured_network(when: str) -> None:
    network = Normalising(when).eval()
    copy = read_network(network, (2, 3, 12, 12)).finish()
    given, expected = torch.ones(4, 3, 12, 12), torch.ones(4, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close((copy(given), given), (network(expected), expected))


class Shared(nn.Module):
    """Cannot be captured as a whole, and has a convolution and its SiLU in two sequences, of which one runs."""

    def __init__(self, *, second: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU())
        self.second = nn.Sequential(*self.features, nn.ReLU()) if second else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) if x.sum() < 1e9 else self.second(x)


@pytest.mark.parametrize("second", [False, True])
def test_a_sequence_of_a_network_is_captured_alone(second: bool) -> None:
    (layer,) = read_network(Shared(second=second).eval(), (2, 3, 12, 12)).layers
    assert (layer.name, layer.activation) == ("features.0", "silu")


class Noisy(nn.Module):
    """Draws random numbers: of a fixed size, or of the size of its images."""

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(self.size) if self.size else torch.randn_like(x)
        return self.conv(x + noise)


@pytest.mark.parametrize("size", [(2, 3, 12, 12), (1,), ()])
def test_random_numbers_stay_random_and_to_come(size: tuple[int, ...]) -> None:
    network, state = Noisy(size).eval(), torch.get_rng_state()
    copy = read_network(network, (torch.ones(2, 3, 12, 12),)).finish()
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        assert not torch.equal(copy(torch.ones(2, 3, 12, 12)), copy(torch.ones(2, 3, 12, 12)))


class Padding(nn.Module):
    """Tests whether its images have an odd height, and whether they are wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1 if x.shape[3] > 10 else x
        return self.conv(functional.pad(x, (0, 1, 0, 1)) if x.shape[2] % 2 else x).reshape(x.shape[0], -1)


def test_sizes_that_a_network_asks_for_are_refused_not_computed_wrongly() -> None:
    network, x = Padding().eval(), torch.ones(1, 3, 12, 12)
    copy = read_network(network, (x,)).finish()
    with torch.no_grad():
        for made in (torch.ones(5, 3, 12, 12), torch.ones(1, 3, 14, 14)):
            torch.testing.assert_close(copy(made), network(made))
        with pytest.raises(ValueError, match=r"captured for other sizes: .*Mod"):
            copy(torch.ones(1, 3, 13, 13))
        with pytest.raises(ValueError, match="captured for other sizes: axis 3 of argument 0 is 8, not at least 11; "):
            copy(torch.ones(1, 3, 12, 8))


@pytest.mark.parametrize(
    ("sizes", "why"), [((1, 3, 12, 8), "axis 3 of argument 0 is 8, not at least 11"), ((1, 3, 13, 13), "Mod")]
)
def test_compiled_copies_refuse_these_sizes_too(sizes: tuple[int, ...], why: str) -> None:
    network = Padding().eval()
    copy = read_network(network, (torch.ones(1, 3, 12, 12),)).finish()
    torch.compiler.reset()
    compiled = torch.compile(copy, backend="eager", fullgraph=True)
    with torch.no_grad():
        for x in (torch.ones(1, 3, 12, 12), torch.ones(1, 3, 14, 14)):
            torch.testing.assert_close(compiled(x), network(x))
        with pytest.raises(torch._dynamo.exc.Unsupported, match=f"captured for other sizes: .*{why}"):
            compiled(torch.ones(sizes))


class PaddingToFours(Padding):
    """Pads images to multiples of 4."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4)))


class Upsampled(nn.Module):
    """The same filters for images and for upsampled ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(functional.interpolate(x, scale_factor=2.0)), self.conv(x)


@torch.no_grad()
def test_filters_that_a_kernel_needs_in_another_form_are_kept_for_other_operators() -> None:
    network, x = Upsampled().eval(), torch.randn(2, 3, 5, 6)
    found = read_network(network, x)
    first, _ = found.layers
    assert first.module is not None
    (part,) = found.parts
    part.take(first, first.problems[0], first.module.tuned("bias", "no library, so PyTorch computes it"))
    torch.testing.assert_close(found.finish()(x), network(x))


class Enlarged(nn.Module):
    """A convolution, a pixel shuffle and a ReLU, whose result has another reader."""

    def __init__(self, taps: int, padding: int, factor: int, *, bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 2 * factor**2, taps, padding=padding, bias=bias)
        self.shuffle = nn.PixelShuffle(factor)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.shuffle(self.conv(x)))
        return y + y.mean()


@torch.no_grad()
@pytest.mark.parametrize(
    ("network", "epilogue"),
    [(Enlarged(3, 1, 2, bias=True), "bias_add_relu"), (Enlarged(5, 1, 3, bias=False), "bias_relu")],
    ids=["with biases", "without"],
)
def test_a_pixel_shuffle_after_a_convolution_is_a_transposed_convolution(network: nn.Module, epilogue: str) -> None:
    network = network.eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 6, 7)
    found = read_network(network, x)
    layer, *_ = found.layers
    problem, module = layer.problems[0], layer.module
    assert isinstance(problem, Problem)
    assert isinstance(module, Convolution)
    assert (problem.operation, problem.epilogue, problem.has_residual) == ("conv_transpose", epilogue, False)
    assert problem.geometry.output_padding == (0, 0)
    assert [way.problems[0].operation for way in layer.ways] == ["conv_transpose", "conv2d"]
    tuned = module.tuned(epilogue, "no library, so PyTorch computes it")
    assert tuned.error(x, y=tuned(x), bounds=(1e-6, 1e-6)) < 1
    (part,) = found.parts
    part.take(layer, problem, tuned)
    copy = found.finish()
    for images in (x, torch.randn(3, 4, 9, 8)):
        torch.testing.assert_close(copy(images), network(images))
    assert "pixel_shuffle" not in str(copy.code)
    exact = module.double().tuned(epilogue, "no library")
    torch.testing.assert_close(exact(x.double()), torch.relu(module(x.double())), rtol=1e-12, atol=1e-12)


def test_padding_that_depends_on_the_size_is_not_a_convolutions() -> None:
    network = PaddingToFours().eval()
    found = read_network(network, (torch.ones(2, 3, 13, 13),))
    (layer,) = found.layers
    assert layer.fused is not None
    assert layer.fused.front is None
    x = torch.randn(2, 3, 10, 15)
    with torch.no_grad():
        torch.testing.assert_close(found.finish()(x), network(x))


@pytest.mark.parametrize(("memory_format", "layout"), [("channels_last", "nhwc"), ("contiguous_format", "nchw")])
def test_layers_of_one_pixel_have_the_networks_layout(memory_format: str, layout: str) -> None:
    """PyTorch has the same names for their tensors; the study uses the network's."""
    network = SqueezeExcite().eval().to(memory_format=getattr(torch, memory_format))
    layers = read_network(network, (2, 3, 12, 12)).layers
    convolutions = [layer.problem for layer in layers if layer.kind == "convolution"]
    assert [problem and problem.layout for problem in convolutions] == [layout] * 3


def test_planes_are_nchw_though_their_filters_of_one_pixel_could_be_either() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)).eval()
    assert {layer.problem.layout for layer in read_network(network, (2, 3, 12, 12)).layers if layer.problem} == {"nchw"}


class Frames(nn.Module):
    """A causal convolution of a video, one frame per call, with a list of the frames before it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 3, (2, 3, 3))

    def forward(self, x: Tensor, before: list[Tensor | str | None], *, scale: float) -> Tensor:
        if isinstance(before[0], Tensor):
            y = self.conv(functional.pad(torch.cat([before[0], x], 2), (1, 1, 1, 1)))
        else:
            y = self.conv(functional.pad(x, (1, 1, 1, 1, 1, 0)))
        before[0] = "first" if before[0] is None else x.clone()
        return y * scale


class Video(nn.Module):
    """Decodes a video in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = Frames()

    def forward(self, x: Tensor) -> Tensor:
        before: list[Tensor | str | None] = [None]
        return torch.cat([self.frames(part, before, scale=2.0) for part in x.split(1, 2)], 2)


def test_a_part_that_runs_in_a_loop_has_a_graph_for_each_kind_of_call() -> None:
    network = Video().eval()
    found = read_network(network, (1, 3, 12, 6, 5))
    problems = [layer.problem for layer in found.layers]
    assert [problem and problem.values.get("cache_d", 0) for problem in problems] == [0, 0, 1]
    assert [layer.name for layer in found.layers] == ["frames.conv"] * 3
    copy = found.finish()
    calls = []
    copy.get_submodule("frames.part").register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        for sizes, others in (((1, 3, 12, 6, 5), 0), ((1, 3, 3, 6, 5), 0), ((1, 3, 3, 4, 5), 3)):
            x = torch.randn(sizes)
            calls.clear()
            torch.testing.assert_close(copy(x), network(x))
            assert len(calls) == others, "a size that was not captured is computed by the part itself"


def test_kernels_can_compute_all_linear_layers_of_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True, norm_first=True).eval()
    found = read_network(layer, (2, 9, 16))
    linear = [each for each in found.layers if each.is_linear]
    problems = [each.problems[0] for each in linear]
    assert [problem.epilogue for problem in problems] == ["bias", "bias_add", "bias_gelu", "bias_add"]
    imported = findings(graph_of_module(layer, [(2, 9, 16)]), op="conv2d")
    assert [each.problem.values["epilogue"] for each in imported.fused] == [problem.epilogue for problem in problems]
    copy, x = found.finish(), torch.randn(3, 9, 16)
    with torch.no_grad():
        torch.testing.assert_close(copy(x), layer(x))
