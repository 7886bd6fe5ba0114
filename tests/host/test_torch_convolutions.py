"""Every convolution that import-model lists is exported and replaced: 1-D to 3-D, transposed, padded on one side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from autotune.exporting import SelectedKernel, export_library
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.problem import Problem
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.host.host_driver import OnHostDriver, host_driver
from tests.templates.shipped_families import family

pytestmark = [pytest.mark.cxx, pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")]

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from autotune.autotune_runtime import torch_exact  # noqa: E402
from autotune.autotune_runtime.convolution import Geometry  # noqa: E402
from autotune.autotune_runtime.torch_backend import autotune  # noqa: E402
from autotune.autotune_runtime.torch_call import Call  # noqa: E402
from autotune.autotune_runtime.torch_convert import convert  # noqa: E402
from autotune.autotune_runtime.torch_convolution import CONVOLUTION, TunedConvolution, convolution  # noqa: E402
from autotune.importing.fused_layers import findings  # noqa: E402
from autotune.importing.torch_module import graph_of_module  # noqa: E402
from tests import torch_networks as networks  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 convolutions, in units of the largest output."""
FAMILIES = {"conv2d": "implicit_gemm", "conv": "conv_implicit_gemm", "conv_transpose": "conv_transpose_direct"}


class Signals(nn.Module):
    """1-D: a dilated convolution, and a transposed one in two groups with a norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=2, dilation=2)
        self.up, self.norm = nn.ConvTranspose1d(4, 4, 3, 2, 1, output_padding=1, groups=2), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.conv(x))
        return torch.relu(self.norm(self.up(y)) + torch.cat([y, y], 2))


class Images(nn.Module):
    """2-D: a convolution that pads on one side, a plain one, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.sided, self.plain = nn.Conv2d(2, 4, 2, padding="same"), nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.up(torch.relu(self.plain(torch.relu(self.sided(x))))))


class Volumes(nn.Module):
    """3-D: a convolution with a norm and perhaps a residual, and a transposed one."""

    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.conv, self.norm = nn.Conv3d(2, 2, (3, 1, 1), padding=(1, 0, 0), bias=False), nn.BatchNorm3d(2)
        self.up = nn.ConvTranspose3d(2, 3, (1, 2, 2), (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return self.up(functional.silu(y + x if self.residual else y))


class Resized(nn.Module):
    """2-D: two convolutions of padded images, whose padding is computed in float64 for the first, and one of upsampled
    images.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.BatchNorm2d(6)
        self.down, self.up = nn.Conv2d(6, 4, 3, stride=2), nn.Conv2d(4, 6, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x.double(), (1, 0, 0, 2)).to(x.dtype)
        y = torch.relu(self.norm(self.first(padded)))
        y = functional.silu(self.down(functional.pad(y, (0, 1, 1, 0)))) * 2.0
        return torch.relu(
            self.up(functional.interpolate(y.double(), scale_factor=2.0, mode="nearest-exact").to(x.dtype))
        )


class Causal(nn.Module):
    """3-D: convolutions that read the frames before their images, one of them after zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 2, 3), nn.Conv3d(2, 3, (3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        before, now = x[:, :, :2].clone(), x[:, :, 2:].clone()
        y = self.first(functional.pad(torch.cat([before, now], 2), (1, 1, 1, 1, 0, 0)))
        return self.second(functional.pad(torch.cat([before[:, :, 1:], y + now], 2), (0, 0, 0, 0, 1, 0)))


class Joined(nn.Module):
    """2-D, channels-last: convolutions of two concatenated tensors, the second of which runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 2, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(2)
        self.second = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(self.norm(self.first(torch.cat([x, x.sin()], 1))))
        y = torch.relu(self.second(torch.cat([y, y.cos()], 1)) + y)
        return self.second(torch.stack([y, y.exp()], 2).flatten(1, 2))


def made(name: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A network, and its images."""

    def images(n: int, *sizes: int) -> Tensor:
        return torch.randn((n, *sizes), generator=torch.Generator().manual_seed(n))

    if name == "signals":
        return networks.seeded(Signals), lambda n: images(n, 2, 9)
    if name == "images":
        return networks.seeded(Images), lambda n: images(n, 2, 6, 5)
    if name == "volumes":
        return networks.seeded(partial(Volumes, residual=True)), lambda n: images(n, 2, 3, 4, 5)
    if name == "resized":
        return networks.seeded(Resized), lambda n: images(n, 4, 3, 4)
    if name == "causal":
        return networks.seeded(Causal), lambda n: images(n, 2, 4, 4, 5)
    if name == "joined, channels last":
        network = networks.seeded(Joined).to(memory_format=torch.channels_last)
        return network, lambda n: images(n, 2, 5, 4).contiguous(memory_format=torch.channels_last)
    last = torch.channels_last_3d  # in which PyTorch's convolution stores its output on some CPUs only: no residual
    network = networks.seeded(partial(Volumes, residual=False)).to(memory_format=last)
    return network, lambda n: images(n, 2, 3, 4, 5).contiguous(memory_format=last)


NETWORKS = {
    "signals": 2,
    "images": 3,
    "volumes": 2,
    "volumes, channels last": 2,
    "resized": 3,
    "causal": 2,
    "joined, channels last": 3,
}
"""The networks, each with its number of convolutions."""


def listed(name: str) -> list[Problem]:
    """The problems that import-model lists."""
    network, images = made(name)
    layout = "nhwc" if name.endswith("last") else None
    network = network.to(memory_format=torch.contiguous_format)
    graph = graph_of_module(network, [images(2).shape], layout=layout)
    found = findings(graph)
    assert not found.left_out
    return [each.problem for each in found.fused]


def plainest(problem: Problem, layer: str) -> SelectedKernel:
    template = family(FAMILIES[problem.operation.name])
    space = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1)
    assert space.default is not None
    return chosen(template, problem, space.default, layer)


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    """Libraries of three operations in one folder, as `export` writes them for a study."""
    problems = [problem for name in NETWORKS for problem in listed(name)]
    folder, sources = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("sources")
    for operation in FAMILIES:
        of_operation = dict.fromkeys(problem for problem in problems if problem.operation.name == operation)
        kernels = [plainest(problem, f"l{at}") for at, problem in enumerate(of_operation)]
        exported = export_library(kernels, sources / operation, ())
        (folder / operation / "build").mkdir(parents=True)
        built = built_for_host(exported, folder / operation / "build", cxx=cxx)
    with host_driver(built) as run:
        run(networks.support_cpu)
        yield run


def folder_of(library: str) -> Path:
    return Path(library).parents[2]


@torch.no_grad()
def converted(library: str, name: str) -> tuple[list[tuple[str, bool]], list[float]]:
    """A converted network's rows, and differences: by itself for several numbers of images, then compiled."""
    network, images = made(name)
    result, report = convert(network, images(2), library=folder_of(library), margin=networks.ALWAYS)
    rows = [row for row in report.rows if row.kind == "convolution"]
    assert sum(isinstance(each, TunedConvolution) for each in result.modules()) == len(rows)
    if name in ("resized", "causal", "joined, channels last"):
        left = [word for word in ("pad", "cat", "upsample") if f"aten.{word}" in str(result.code)]
        assert not left, "kernels pad, join and upsample what they read"
    differences = [networks.difference(result, network, images(n)) for n in (2, 5, 1)]
    torch.compiler.reset()
    whole = torch.compile(result, backend="aot_eager", fullgraph=True)
    differences += [networks.difference(whole, network, images(n)) for n in (2, 3, 6)]
    return [(row.why, row.swapped) for row in rows], differences


@pytest.mark.parametrize("name", NETWORKS)
def test_all_are_converted(name: str, on_cpu: OnHostDriver) -> None:
    rows, differences = on_cpu(converted, name)
    assert [swapped for _, swapped in rows] == [True] * NETWORKS[name], rows
    assert max(differences) < CLOSE


@torch.no_grad()
def compiled(library: str, name: str) -> tuple[str, list[float]]:
    """The last line of the backend's log for a network, and differences for two numbers of images."""
    lines: list[str] = []
    logger, handler = logging.getLogger(autotune.__module__), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    network, images = made(name)
    torch.compiler.reset()
    options = {"library": str(folder_of(library)), "margin": networks.ALWAYS, "rest": "aot_eager"}
    run = torch.compile(network, backend=autotune, options=options, fullgraph=True)
    differences = [networks.difference(run, network, images(n)) for n in (2, 4)]
    logger.removeHandler(handler)
    return lines[0].splitlines()[-1], differences


@pytest.mark.parametrize("name", NETWORKS)
def test_the_backend_runs_the_same_kernels(name: str, on_cpu: OnHostDriver) -> None:
    line, differences = on_cpu(compiled, name)
    assert line.startswith(f"{NETWORKS[name]} of {NETWORKS[name]} convolutions")
    assert max(differences) < CLOSE


@torch.no_grad()
def by_pytorch_too(library: str) -> list[float]:
    """Differences of a tuned layer for another size, for a transposed input, and after its filters changed."""
    network, images = made("signals")
    result, _ = convert(network, images(2), library=folder_of(library), margin=networks.ALWAYS)
    tuned = result.get_submodule("conv")

    def expected(x: Tensor) -> Tensor:
        return functional.leaky_relu(network.get_submodule("conv")(x))

    inputs = (torch.randn(2, 2, 20), torch.randn(3, 9, 2).transpose(1, 2))
    differences = [networks.difference(tuned, expected, x) for x in inputs]
    for each in (tuned, network.get_submodule("conv")):
        each.weight.mul_(-2)
    return [*differences, networks.difference(tuned, expected, images(3))]


def test_other_sizes_and_new_filters_are_right(on_cpu: OnHostDriver) -> None:
    assert max(on_cpu(by_pytorch_too)) < CLOSE


def operator(library: str) -> tuple[dict[str, str], list[float]]:
    """PyTorch's own checks of the operator, and differences of its function from PyTorch's, transposed and not."""
    paths = {name: str(folder_of(library) / name / "build" / f"lib{name}.so") for name in FAMILIES}
    network = made("signals")[0].requires_grad_(requires_grad=False)
    conv, up = network.get_submodule("conv"), network.get_submodule("up")
    x, wide, z = torch.randn(2, 2, 9), torch.randn(2, 4, 9), torch.randn(2, 4, 18)
    of_conv, of_up = partial(convolution, library=paths["conv"]), partial(convolution, library=paths["conv_transpose"])
    tensors = (wide, up.weight, up.bias, z)
    pairs = (
        (
            of_conv(x, conv.weight, conv.bias, padding=2, dilation=2, activation="leaky_relu"),
            functional.leaky_relu(conv(x)),
        ),
        (
            of_up(*tensors, stride=2, padding=1, output_padding=1, groups=2, activation="relu"),
            torch.relu(up(wide) + z),
        ),
    )
    with pytest.raises(ValueError, match=r"w: is \(4, 2, 1, 3\), .* expected \(4, 2, 3\)"):  # x would be one image
        of_conv(x, conv.weight.unsqueeze(2), conv.bias, padding=2, dilation=2, activation="leaky_relu")
    sizes = (("k", 4), ("stride_w", 2), ("padding_w", 1), ("output_padding_w", 1), ("groups", 2))
    text = Call(paths["conv_transpose"], (*sizes, ("epilogue", "bias_add_relu")), torch_shapes=True).text
    checks: dict[str, str] = torch.library.opcheck(CONVOLUTION.operator, (*tensors, None, None, None, text))
    return checks, [float((y - expected).abs().max() / expected.abs().max()) for y, expected in pairs]


def test_the_operator_passes_pytorchs_own_checks(on_cpu: OnHostDriver) -> None:
    checks, differences = on_cpu(operator)
    assert set(checks.values()) == {"SUCCESS"}
    assert max(differences) < CLOSE


@pytest.mark.parametrize("most", [1 << 20, 500])
@pytest.mark.parametrize("transposed", [False, True])
def test_sums_at_pixels_are_those_of_a_float64_convolution(
    transposed: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_exact, "MOST_ELEMENTS", most)
    x, weight = (torch.randn(sizes, dtype=torch.float64) for sizes in ((2, 4, 11, 18), (4, 2, 3, 2)))
    stride, before, dilation = (2, 3), (1, 0), (1, 2)
    rest = (None, stride, before, dilation, transposed, (1, 2) if transposed else (0, 0), 2)
    y = torch.convolution(x, weight, *rest)
    shapes = (tuple(x.shape), tuple(weight.shape), tuple(y.shape))
    of = Geometry(*shapes, stride, before, before, dilation, 2, transposed=transposed)
    pixels = torch_exact.chosen_pixels(y, weight, of.groups)
    exact, magnitudes, left = torch_exact.sums(x, weight, pixels, of)
    torch.testing.assert_close(exact, torch_exact.at_pixels(y, pixels))
    assert (magnitudes >= exact.abs()).all()
    products = torch.convolution(torch.ones_like(x), torch.ones_like(weight), *rest)
    torch.testing.assert_close((12 * left).expand_as(exact), torch_exact.at_pixels(products, pixels))
    assert left.min() < left.max()


def without(library: str, operation: str) -> list[tuple[str, bool]]:
    """The rows of a network whose transposed convolution has no library."""
    network, images = made("volumes")
    path = folder_of(library) / operation / "build"
    _, report = convert(network, images(2), library=[path / f"lib{operation}.so"], margin=networks.ALWAYS)
    return [(row.why, row.swapped) for row in report.rows]


def test_a_convolution_without_a_library_is_left(on_cpu: OnHostDriver) -> None:
    first, last = on_cpu(without, "conv")
    assert first[1]
    assert last == ("there is no library of conv_transpose", False)
