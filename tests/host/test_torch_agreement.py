"""import-model, convert and the backend of torch.compile find the same convolutions, problem by problem."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from autotune.autotune_runtime.torch_dynamo import lifted  # noqa: E402
from autotune.autotune_runtime.torch_layers import Inference, Layer, LayerGraph, read_network  # noqa: E402
from autotune.importing.fused_layers import OPERATIONS, findings, has_family  # noqa: E402
from autotune.importing.network import Request  # noqa: E402
from autotune.importing.onnx_file import read_onnx  # noqa: E402
from autotune.importing.torch_module import graph_of_module  # noqa: E402
from autotune.operation.registry import operation  # noqa: E402
from autotune.problem import Problem, make_problem  # noqa: E402
from tests.benchmarks.networks import VaeDecoder  # noqa: E402


def conv_norm(c: int, k: int, r: int = 3, act: nn.Module | None = None, **options: int) -> nn.Sequential:
    conv = nn.Conv2d(c, k, r, padding=r // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(k), act or nn.SiLU(inplace=True))


class C2f(nn.Module):
    """As in YOLO: a forward that unpacks `chunk`, and bottlenecks whose outputs are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv_norm(3, 8, 1)
        self.bottlenecks = nn.ModuleList(nn.Sequential(conv_norm(4, 4), conv_norm(4, 4)) for _ in range(2))
        self.last = conv_norm(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, 1)
        parts = [left, right]
        for each in self.bottlenecks:
            parts.append(parts[-1] + each(parts[-1]))
        return self.last(torch.cat(parts, 1))


class UNet(nn.Module):
    """Downsampling, upsampling by a transposed convolution and by interpolation, with concatenation, and a gate of two
    chunks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv_norm(3, 8, act=nn.ReLU()), conv_norm(8, 16, act=nn.ReLU(), stride=2)])
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.join = conv_norm(16, 16, act=nn.LeakyReLU())
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](first)
        y = self.join(torch.cat([first, self.up(second)], dim=1))
        value, gate = torch.chunk(y, 2, dim=1)
        y = self.head(value * torch.sigmoid(gate))
        return functional.interpolate(y, scale_factor=0.5) + functional.interpolate(y, size=(12, 12))


class Residuals(nn.Module):
    """Blocks of a ResNet, one of them with a convolution as its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv_norm(3, 8, act=nn.ReLU())
        self.b, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c, self.shortcut = nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(8, 16, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        z = self.norm(self.b(y))
        z += y
        y = functional.relu_(z)
        return torch.relu(self.c(y) + self.shortcut(y))


class Mobile(nn.Module):
    """Inverted residual with squeeze and excitation, as in EfficientNet and RegNetY."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv_norm(4, 16, 1), conv_norm(16, 16, groups=16)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.project = conv_norm(16, 4, 1, act=nn.Identity())
        self.stem = conv_norm(3, 4, act=nn.ReLU6(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(self.expand(x))
        scale = functional.silu(self.squeeze(functional.adaptive_avg_pool2d(y, 1)))
        return x + self.project(y * self.excite(scale).sigmoid())


class ConvNeXt(nn.Module):
    """A depthwise convolution, a norm and linear layers on the last axis, and a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.5))
        self.down = nn.Conv2d(8, 16, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return self.down(x + y * self.scale)


class Dense(nn.Module):
    """Concatenations, with norms before and after convolutions, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(4), nn.BatchNorm2d(12)])
        self.narrow, self.grow = nn.Conv2d(8, 4, 1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.last = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = torch.relu(self.norms[1](self.narrow(torch.relu(self.norms[0](x)))))
        return self.last(torch.relu(self.norms[2](torch.cat([x, self.grow(y)], 1))))


class Padded(nn.Module):
    """Padding that is not zeros, and that differs between the sides."""

    def __init__(self) -> None:
        super().__init__()
        self.reflecting = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.circular = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
        self.sided, self.same = nn.Conv2d(8, 8, 2, padding="same"), nn.Conv2d(8, 8, 3, padding="same", dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.same(torch.relu(self.sided(functional.gelu(self.circular(torch.relu(self.reflecting(x)))))))


class Video(nn.Module):
    """Causal 3-d convolutions with norms and a residual, as in decoders of video, then upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(3, 8, 3, padding=(0, 1, 1), bias=False), nn.BatchNorm3d(8)
        self.second, self.third = nn.Conv3d(8, 8, (3, 1, 1), padding=(1, 0, 0)), nn.Conv3d(8, 8, 3, padding="same")
        self.up, self.up_norm = nn.ConvTranspose3d(8, 4, (1, 2, 2), (1, 2, 2), groups=2), nn.BatchNorm3d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([x, x + 1, x - 1], 2)
        x = functional.silu(self.norm(self.first(functional.pad(x, (0, 0, 0, 0, 2, 0)))))
        x = functional.silu(self.third(functional.silu(self.second(x))) + x)
        return self.up_norm(self.up(x))


class Audio(nn.Module):
    """A WaveNet: 1-d convolutions, dilated and gated in blocks of a list, then upsampling with output padding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 1)
        self.blocks = nn.ModuleList(nn.Conv1d(8, 16, 3, padding=2**at, dilation=2**at) for at in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.even = nn.Conv1d(8, 8, 4, padding="same")
        self.up, self.norm = nn.ConvTranspose1d(8, 4, 4, 2, 1, output_padding=1, bias=False), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(2))
        for block, skip in zip(self.blocks, self.skips, strict=True):
            value, gate = block(x).chunk(2, 1)
            x = x + skip(torch.tanh(value) * torch.sigmoid(gate))
        return functional.leaky_relu(self.norm(self.up(torch.relu(self.even(x)))))


class Generator(nn.Module):
    """Transposed convolutions with norms, as in a DCGAN, one with two groups, and an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.down = conv_norm(3, 8, act=nn.ReLU(), stride=2)
        self.up, self.norm = nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.grouped, self.same = nn.ConvTranspose2d(8, 6, 3, 1, 1, groups=2), nn.Conv2d(8, 6, 1)
        self.grouped_norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.up(self.down(x))))
        return torch.sigmoid(self.grouped_norm(self.grouped(x)) + self.same(x))


class Odd(nn.Module):
    """Activations written out, a scale and a shift by hand; filters that are shared, computed or reparametrized."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1))
        self.scale, self.shift = nn.Parameter(torch.ones(1, 8, 1, 1)), nn.Parameter(torch.zeros(8, 1, 1))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) * self.scale + self.shift
        y = y * torch.sigmoid(y)
        y = self.norm(self.b(y)) + self.b(y)  # filters that are read twice: no norm is folded
        y = self.normed(y)
        y = y * functional.relu6(y + 3) / 6
        return functional.conv2d(y, self.a.weight.mean((2, 3), keepdim=True).repeat(1, 8, 1, 1)[:, :8] * y.mean())


class Pyramid(nn.Module):
    """Features of two sizes in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv_norm(3, 8, stride=2), conv_norm(8, 16, stride=2)
        self.inner = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)])

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        first, second = self.inner[0](x), self.inner[1](self.down(x))
        return [first + functional.interpolate(second, size=first.shape[-2:]), second]


class Head(nn.Module):
    """Scores and boxes of each pixel of all features, by the same convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scores, self.boxes = conv_norm(8, 8, act=nn.ReLU()), nn.Conv2d(8, 1, 1), nn.Conv2d(8, 4, 1)

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        hidden = [self.conv(each) for each in features]
        scores, boxes = ([head(each).flatten(2) for each in hidden] for head in (self.scores, self.boxes))
        return torch.cat(scores, 2), torch.cat(boxes, 2)


class Detector(nn.Module):
    """As many boxes as there are high scores: the control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = Pyramid(), Head()

    def forward(self, x: Tensor) -> list[Tensor]:
        scores, boxes = self.head(self.backbone(x))
        return [box[:, score > score.mean()] for score, box in zip(scores[:, 0], boxes, strict=True) if score.max() > 0]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "C2f": (C2f, 6),
    "UNet": (UNet, 5),
    "Residuals": (Residuals, 4),
    "Mobile": (Mobile, 6),
    "ConvNeXt": (ConvNeXt, 6),
    "Dense": (Dense, 4),
    "Padded": (Padded, 4),
    "Odd": (Odd, 4),
    "Video": (Video, 4),
    "Audio": (Audio, 9),
    "Generator": (Generator, 4),
}
"""and the number of their convolutions and norms that run kernels"""


def served(layers: Sequence[Layer]) -> Counter[Problem]:
    ways = ([way.problems[0] for way in layer.ways if way.problem is not None] for layer in layers)
    problems = (next(filter(has_family, of_layer)) for of_layer in ways if of_layer)
    return Counter(make_problem(operation(problem.operation), problem.values) for problem in problems)


def imported(network: nn.Module, size: tuple[int, ...]) -> tuple[Counter[Problem], int]:
    with torch.no_grad():
        graph = graph_of_module(network, [size])
    found = [findings(graph, op=op) for op in OPERATIONS if op not in ("gemm", "training")]
    return Counter(each.problem for of in found for each in of.fused), sum(of.count for of in found)


def compiled(network: nn.Module, x: Tensor, *, fullgraph: bool = True) -> tuple[Counter[Problem], int]:
    layers: list[Layer] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        layers.extend(LayerGraph(lifted(graph, inputs).part).layers)
        return graph

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(network, backend=backend, fullgraph=fullgraph)(x)
    return served(layers), len(layers)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_find_the_same_convolutions_and_norms(name: str) -> None:
    build, count = NETWORKS[name]
    network, size = build().eval(), (2, 3, 24, 24)
    x = torch.randn(size, generator=torch.Generator().manual_seed(1))
    sketches: list[Inference] = []
    converted = read_network(network, x, sketches.append)
    assert sum(served(converted.layers).values()) == count
    expected = (served(converted.layers), len(converted.layers))
    assert [(served(each.layers), len(each.layers)) for each in sketches] == [expected]
    assert [each.name for each in sketches[0].layers] == [each.name for each in converted.layers]
    assert imported(network, size) == expected
    assert compiled(network, x) == expected
    made = converted.finish()
    with torch.no_grad():
        for images in (x, torch.cat([x, x, x])):
            torch.testing.assert_close(made(images), network(images), rtol=1e-4, atol=1e-5)


class Everything(nn.Module):
    """One of each of the layers and fused operators that ONNX can express."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.groups = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.conv, self.wide = nn.Conv2d(8, 8, 3), nn.Conv2d(16, 64, 3, padding=1)
        self.norms, self.last = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2)), nn.Conv2d(16, 16, 1)
        self.layers = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.pad(functional.silu(self.groups(self.stem(x))), (1, 1, 1, 1))
        x = self.conv(x)
        y = functional.max_pool2d(
            self.conv(functional.pad(functional.interpolate(x, scale_factor=2.0), (2, 0, 1, 1))), 2
        )
        x = torch.relu(self.norms[0](torch.cat([x, y], 1)))
        y = self.last(torch.relu(self.norms[1](x))) + x
        y = y * torch.sigmoid(y.mean((2, 3), keepdim=True))
        return functional.pixel_shuffle(self.wide(y), 2), self.layers(y.permute(0, 2, 3, 1))


@pytest.mark.filterwarnings("ignore")  # the exporter is deprecated, but needs no other package
@pytest.mark.parametrize("opset", [17, 20])
def test_an_onnx_file_has_the_layers_of_the_network(opset: int, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    network, size = Everything().eval(), (2, 3, 24, 24)
    torch.onnx.export(network, (torch.randn(size),), tmp_path / "net.onnx", dynamo=False, opset_version=opset)
    own = graph_of_module(network, [size], layout="nhwc")
    read = read_onnx(Request(str(tmp_path / "net.onnx"), layout="nhwc"))
    for op, count in {"conv2d": 5, "norm": 2, "concat": 2, "max_pool2d": 1, "pixel_mean": 1, "gate": 1}.items():
        expected, found = ([(each.problem, each.parts) for each in findings(of, op=op).fused] for of in (own, read))
        assert found == expected
        assert len(found) == count


def test_all_find_the_same_convolutions_of_a_detector() -> None:
    network = Detector().eval()
    x = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    sketches: list[Inference] = []
    found = read_network(network, x, sketches.append)
    assert len(sketches) == 1
    for each in (found, *sketches):
        assert [graph.part.path for graph in each.parts] == ["backbone", "head"]
        assert [(layer.name, layer.problems) for layer in each.layers] == [
            (layer.name, layer.problems) for layer in found.layers
        ]
    expected = (served(found.layers), 10)
    assert sum(expected[0].values()) == len(found.layers) == 10
    assert imported(copy.deepcopy(network), (2, 3, 24, 24)) == expected
    made = found.finish()
    with torch.no_grad():
        for images in (x, torch.randn(1, 3, 40, 36)):
            torch.testing.assert_close(made(images), network(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [Mobile, Residuals])
def test_layers_in_another_example_are_those_of_a_network_of_its_size(build: Callable[[], nn.Module]) -> None:
    network = build().eval().to(memory_format=torch.channels_last)
    x, other = (torch.randn(2, 3, s, s).contiguous(memory_format=torch.channels_last) for s in (24, 32))
    found, expected = read_network(network, [x, other]).layers, read_network(network, other).layers
    assert len(found) == len(expected)
    for layer, of_its_size in zip(found, expected, strict=True):
        first = layer.problems[0]
        assert {first, *layer.elsewhere_of(first)} == {first, of_its_size.problems[0]}


NAMED = {
    "resnet18": 20,
    "resnet50": 53,
    "resnext50_32x4d": 53,
    "vgg16": 13,
    "mobilenet_v2": 52,
    "efficientnet_b0": 81,
    "convnext_tiny": 81,
    "densenet121": 120,
    "vae_decoder": 13,
    "regnet_y_1_6gf": 140,
    "mobilenet_v3_large": 62,
    "inception_v3": 94,
    "ssdlite320_mobilenet_v3_large": 98,
    "retinanet_resnet50_fpn": 111,
    "fcos_resnet50_fpn": 116,
    "fasterrcnn_resnet50_fpn": 76,
}
"""The networks of docs/pytorch.md and detectors, and the number of their layers that run kernels."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torchvision's detectors
@pytest.mark.parametrize("name", NAMED)
def test_all_find_the_same_convolutions_of_networks(name: str) -> None:
    detects = name.endswith(("fpn", "320_mobilenet_v3_large"))
    options: dict[str, object] = {"weights_backbone": None} if detects else {}
    options |= {"min_size": 64, "max_size": 64} if name.endswith("fpn") else {}
    options |= {"init_weights": False} if name == "inception_v3" else {}
    get_model = pytest.importorskip("torchvision", exc_type=ImportError).models.get_model
    network = VaeDecoder() if name == "vae_decoder" else get_model(name, weights=None, **options)
    network, size = network.eval(), (2, 4, 16, 16) if name == "vae_decoder" else (2, 3, 96, 96)
    x = torch.randn(size, generator=torch.Generator().manual_seed(1))
    found = read_network(network, x)
    expected = (served(found.layers), len(found.layers))
    assert sum(expected[0].values()) == NAMED[name]
    assert imported(copy.deepcopy(network), size) == expected
    assert compiled(network, x, fullgraph=not detects) == expected


def test_channels_last_is_the_networks() -> None:
    network = Mobile().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 24, 24).contiguous(memory_format=torch.channels_last)
    expected = served(read_network(network, x).layers)
    convolutions = [problem for problem in expected if problem.operation.name == "conv2d"]
    assert {problem.values["layout"] for problem in convolutions} == {"nhwc"}
    assert [problem.operation.name for problem in expected if problem not in convolutions] == ["pixel_mean", "gate"]
    assert imported(network, (2, 3, 24, 24))[0] == expected
    assert compiled(network, x)[0] == expected
    assert {make_problem(problem.operation, {**problem.values, "layout": "nchw"}) for problem in convolutions} == {
        *served(read_network(network.to(memory_format=torch.contiguous_format), x.contiguous()).layers)
    }
