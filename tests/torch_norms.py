"""Networks with norms for the tests of PyTorch, and what these tests run in the process of a host driver."""

from __future__ import annotations

import copy
import os
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_plain import Norm
from autotune.autotune_runtime.torch_swap import Row
from autotune.autotune_runtime.torch_untuned import disagreements
from tests.torch_networks import ALWAYS, difference, seeded


class Decoder(nn.Module):
    """A block of an image decoder, channels-last: group norm with SiLU, convolution, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(2, 8, eps=1e-6)
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.GroupNorm(2, 8, eps=1e-6)
        self.conv2 = nn.Conv2d(8, 3, 3, padding=1)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.conv1(functional.silu(self.norm1(x)))
        return self.conv2(functional.silu(self.norm2(functional.interpolate(x, scale_factor=2.0)), inplace=True))


class Rows(nn.Module):
    """Norms of rows of all kinds: over two axes, without weights, of the mean of squares, and before a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.two = nn.LayerNorm((2, 12))
        self.plain = nn.LayerNorm(12, elementwise_affine=False)
        self.rms = nn.RMSNorm(12, eps=1e-6)
        self.linear = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.rms(self.linear(functional.gelu(self.plain(self.two(x)))))


class Pixels(nn.Module):
    """A norm of each pixel's channels, written out, with SiLU, and one whose length is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.conv = nn.Parameter(torch.ones(12, 1, 1)), nn.Conv2d(12, 12, 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(functional.normalize(x.float(), dim=1).to(x.dtype) * 12**0.5 * self.gamma + 0.0)
        y = self.conv(y)
        length = torch.linalg.vector_norm(y, dim=1, keepdim=True).clamp_min(1e-12)
        return y / length.expand_as(y) + length


def decoder() -> nn.Module:
    """The block with weights as in a trained one."""
    return randomised(seeded(Decoder))


def rows() -> nn.Module:
    """The norms of rows with weights as in trained ones."""
    return randomised(seeded(Rows))


def pixels() -> nn.Module:
    """The norm of pixels with weights as in a trained one."""
    return randomised(seeded(Pixels))


def randomised(network: nn.Module) -> nn.Module:
    """A network whose norms have weights."""
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        if parameter.dim() < 4:
            parameter.data.normal_(generator=generator)
    return network.eval()


NETWORKS = {"decoder": (decoder, (2, 8, 6, 6)), "rows": (rows, (3, 2, 12)), "pixels": (pixels, (2, 12, 1, 3))}


def images(name: str, n: int) -> Tensor:
    """Inputs of a network, far from zero."""
    shape = (n, *NETWORKS[name][1][1:])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(n)) + 3
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def converted(library: str, name: str, n: int, margin: float = ALWAYS) -> tuple[tuple[Row, ...], str, str, float]:
    """A converted network's report, its last line, the network's code, and the difference of outputs for n images."""
    network = NETWORKS[name][0]()
    made, report = convert(network, images(name, NETWORKS[name][1][0]), library=library, margin=margin)
    return report.rows, report.summary, str(getattr(made, "code", "")), difference(made, network, images(name, n))


def parameters(library: str) -> tuple[set[str], float, list[float]]:
    """The parameters of a converted network that its original lacks, and differences of outputs after the weights of a
    norm changed, and for other sizes, dtypes and under autocast.
    """
    network = decoder()
    made, _ = convert(network, images("decoder", 2), library=library, margin=ALWAYS)
    new = {*made.state_dict()} - {*network.state_dict()}
    with torch.no_grad():
        for each in (network, made):
            each.get_submodule("norm1").weight.mul_(-2)
    changed = difference(made, network, images("decoder", 2))
    others = [difference(made, network, torch.randn(1, 8, 4, 10))]
    others.append(
        difference(copy.deepcopy(made).double(), copy.deepcopy(network).double(), images("decoder", 2).double())
    )
    return new, changed, others


def disagreeing(library: str) -> tuple[list[str], float]:
    """The norms that are left to PyTorch after a change that their kernels do not notice, and the difference then."""
    network = decoder()
    made, _ = convert(network, images("decoder", 2), library=library, margin=ALWAYS)
    made(images("decoder", 2))  # prepares the weights
    for each in (network, made):
        each.get_submodule("norm2").weight.data.mul_(2)
    names = {part: name for name, part in made.named_modules() if isinstance(part, Norm)}
    found = disagreements(made, [(images("decoder", 2),)], {(part, part.problem.x[1:]): (1.0, 0.0) for part in names})
    wrong = [part for part, _ in found]
    for part in wrong:
        part.leave_to_pytorch()
    return [name for part, name in names.items() if part in wrong], difference(made, network, images("decoder", 2))


def operator(library: str) -> tuple[str, float, tuple[int, ...]]:
    """torch.ops' schema of the operator, the difference of a call, and the shape on tensors without data."""
    from autotune.autotune_runtime import load

    norm = Norm.operator.of(load(library))
    x, weight, bias = torch.randn(3, 36, 8) + 3, torch.randn(8), torch.randn(8)
    words = {"groups": 2, "eps_e12": 10**6, "epilogue": "weight_bias_silu"}
    expected = functional.silu(functional.group_norm(x.movedim(2, 1), 2, weight, bias, 1e-6)).movedim(1, 2)
    error = float((norm(x, weight, bias, **words) - expected).abs().max())
    fake = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        made = norm(*(fake.from_tensor(each) for each in (x, weight, bias)), **words)
    assert isinstance(made, Tensor)
    return str(Norm.operator.operator._schema), error, tuple(made.shape)


def untuned(_: str, cache: str) -> tuple[tuple[Row, ...], str, float]:
    """A network converted without a library: the report, its last line, and the difference of outputs."""
    os.environ["XDG_CACHE_HOME"] = cache
    network = decoder()
    made, report = convert(network, images("decoder", 2), margin=ALWAYS, wait=True)
    return report.rows, report.summary, difference(made, network, images("decoder", 3))


def compiled(library: str) -> float:
    """The difference of a converted network that Dynamo captures whole."""
    network = decoder()
    made, _ = convert(network, images("decoder", 2), library=library, margin=ALWAYS)
    run = partial(torch.compile(made, backend="aot_eager", fullgraph=True))
    return difference(run, network, images("decoder", 2))


def by_backend(library: str) -> float:
    """The difference of a network that the backend compiles."""
    from autotune.autotune_runtime.torch_backend import autotune

    network = decoder()
    options = {"library": library, "margin": ALWAYS, "rest": "aot_eager"}
    return difference(torch.compile(network, backend=autotune, options=options), network, images("decoder", 2))
