"""Networks that add to a convolution's output, and the code that tests run on them in the process of a host driver."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.autotune_runtime.torch_benchmark import Work, race
from autotune.autotune_runtime.torch_call import Call
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_convolution import CONVOLUTION, convolution
from autotune.autotune_runtime.torch_layers import read_network
from autotune.autotune_runtime.torch_swap import Row
from tests.torch_networks import ALWAYS, CPU, difference, images, seeded


class Adding(nn.Module):
    """A network that runs some of its convolutions and adds to their outputs, as `way` says."""

    def __init__(self, way: Callable[[Adding, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.other = nn.Conv2d(1, 4, 3, padding=1)
        self.next = nn.Conv2d(4, 4, 3, padding=1)
        self.unfused = nn.Conv2d(1, 3, 3, padding=1)
        self.few = nn.Conv2d(1, 3, 5, padding=2)
        self.two = nn.Conv2d(2, 4, 3, padding=1)
        self.unbiased = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = normalising(4)
        self.same = nn.Conv2d(1, 1, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def normalising(k: int) -> nn.BatchNorm2d:
    """A batch norm with non-trivial statistics, as after training."""
    norm = nn.BatchNorm2d(k)
    for name, values in norm.state_dict().items():
        if values.dim():
            norm.state_dict()[name].copy_(torch.rand(k) + 0.5)
    return norm


Way: TypeAlias = Callable[[Adding, Tensor], Tensor]


def wide(x: Tensor, channels: int = 4) -> Tensor:
    """A tensor as large as a convolution's output, made of images of one channel."""
    return x.repeat(1, channels, 1, 1)


def added_with_iadd(m: Adding, x: Tensor) -> Tensor:
    y = m.conv(x)
    y += wide(x)
    return m.relu(y)


def added_by_statements(m: Adding, x: Tensor) -> Tensor:
    y = m.conv(x)
    y.add_(wide(x))
    functional.relu_(y)
    return y


def added_to_z(m: Adding, x: Tensor) -> Tensor:
    z = wide(x)
    z.add_(m.conv(x))
    return torch.relu(z)


def sum_read_twice(m: Adding, x: Tensor) -> Tensor:
    y = m.conv(x) + wide(x)
    return functional.relu(y) * y


def two_blocks(m: Adding, x: Tensor) -> Tensor:
    """As in a ResNet: the first block's output is the second one's residual."""
    y = m.relu(m.conv(x) + wide(x))
    return m.relu(m.next(y) + y)


def meeting(m: Adding, x: Tensor) -> Tensor:
    """As in a ResNet block that changes the size."""
    y = m.conv(x)
    z = m.other(x)
    return m.relu(z + y)


def meeting_without_a_bias(m: Adding, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.relu(y + m.unbiased(x))


FUSED: dict[str, tuple[Way, dict[str, str]]] = {
    "function": (lambda m, x: functional.relu(m.conv(x) + wide(x)), {"conv": "bias_add_relu"}),
    "other order": (lambda m, x: m.relu(wide(x) + m.conv(x)), {"conv": "bias_add_relu"}),
    "torch.add": (lambda m, x: torch.relu(torch.add(m.conv(x), wide(x), alpha=1)), {"conv": "bias_add_relu"}),
    "named": (lambda m, x: torch.relu_(torch.add(input=wide(x), other=m.conv(x))), {"conv": "bias_add_relu"}),
    "methods": (lambda m, x: wide(x).add(m.conv(x)).relu(), {"conv": "bias_add_relu"}),
    "methods in place": (lambda m, x: m.conv(x).add_(wide(x)).relu_(), {"conv": "bias_add_relu"}),
    "+=": (added_with_iadd, {"conv": "bias_add_relu"}),
    "statements": (added_by_statements, {"conv": "bias_add_relu"}),
    "into z": (added_to_z, {"conv": "bias_add_relu"}),
    "dropout": (lambda m, x: m.relu(m.dropout(m.conv(x)) + wide(x)), {"conv": "bias_add_relu"}),
    "dropout's function": (
        lambda m, x: m.relu(functional.dropout(m.conv(x), 0.5, m.training) + wide(x)),
        {"conv": "bias_add_relu"},
    ),
    "no ReLU": (lambda m, x: m.conv(x) + wide(x), {"conv": "bias_add"}),
    "sum read twice": (sum_read_twice, {"conv": "bias_add"}),
    "ReLU before": (lambda m, x: m.relu(m.conv(x)) + wide(x), {"conv": "bias_relu"}),
    "two blocks": (two_blocks, {"conv": "bias_add_relu", "next": "bias_add_relu"}),
    "meeting": (meeting, {"conv": "bias", "other": "bias_add_relu"}),
    "meeting without a bias": (meeting_without_a_bias, {"conv": "bias", "unbiased": "bias_add_relu"}),
    "no bias": (lambda m, x: m.unbiased(x) + wide(x), {"unbiased": "bias_add"}),
    "no bias, ReLU alone": (lambda m, x: m.relu(m.unbiased(x)), {"unbiased": "bias_relu"}),
    "by keyword": (lambda m, x: m.relu(input=m.conv(input=x) + wide(x)), {"conv": "bias_add_relu"}),
    "batch norm": (lambda m, x: m.relu(m.norm(m.unbiased(x)) + wide(x)), {"unbiased": "bias_add_relu"}),
    "batch norm behind a bias": (lambda m, x: m.relu(m.norm(m.conv(x))) + wide(x), {"conv": "bias_relu"}),
}
"""Networks, and the epilogue of each convolution's kernel."""


def read_besides(m: Adding, x: Tensor) -> Tensor:
    y = m.conv(x)
    return (y + wide(x)) * y


def twice(m: Adding, x: Tensor) -> Tensor:
    y = m.conv(x)
    return y + y


def overwritten_images(m: Adding, x: Tensor) -> Tensor:
    """A kernel in place of the addition would read other images."""
    x = x + 1
    y = m.conv(x)
    x.mul_(2)
    return y + wide(x)


def overwritten_view(m: Adding, x: Tensor) -> Tensor:
    """The sum is written into memory that is also read elsewhere."""
    z = wide(x)
    view = z[:, :1]
    z.add_(m.conv(x))
    return torch.relu(z) * view


def overwritten_argument(m: Adding, x: Tensor) -> Tensor:
    """The sum is written into the caller's memory."""
    return x.add_(m.same(x))


LEFT: dict[str, Way] = {
    "broadcast": lambda m, x: m.conv(x) + x,
    "expanded": lambda m, x: m.conv(x) + x.expand(-1, 4, -1, -1),
    "other layout": lambda m, x: m.conv(x) + wide(x).contiguous(memory_format=torch.channels_last),
    "other dtype": lambda m, x: m.conv(x) + wide(x).double(),
    "scaled": lambda m, x: torch.add(m.conv(x), wide(x), alpha=2),
    "number": lambda m, x: m.conv(x) + 1,
    "twice": twice,
    "read besides": read_besides,
    "images are overwritten": overwritten_images,
    "view is read": overwritten_view,
    "argument is overwritten": overwritten_argument,
}
"""Networks whose additions no kernel may fuse."""


def network(way: Way) -> Adding:
    """A network that adds, with fixed weights."""
    return seeded(lambda: Adding(way))


def epilogues(_: str, name: str, *, inference_mode: bool) -> dict[str, str]:
    """The epilogue of each convolution that ran; in inference mode PyTorch does not count who writes a tensor."""
    way = FUSED[name][0] if name in FUSED else LEFT[name]
    with torch.inference_mode(mode=inference_mode):
        layers = read_network(network(way), images(4)).layers
    return {layer.name: layer.problems[0].epilogue for layer in layers if layer.problems}


def converted(library: str, name: str) -> tuple[tuple[Row, ...], str, list[float]]:
    """Rows, the report's last line, and differences for 4 and for other images."""
    way = FUSED[name][0] if name in FUSED else LEFT[name]
    made, report = convert(network(way), images(4), library=library, margin=ALWAYS)
    last = str(report).splitlines()[-1]
    return report.rows, last, [difference(made, network(way), x) for x in (images(4), images(7), images(2, size=16))]


def unfused(library: str) -> tuple[Row, float]:
    """A library that only has the convolution with a bias."""
    added = network(lambda m, x: m.relu(m.unfused(x) + wide(x, 3)))
    made, report = convert(added, images(4), library=library, margin=ALWAYS)
    return next(row for row in report.rows if row.layer == "unfused"), difference(made, added, images(4))


@torch.no_grad()
def rivals(library: str, *, compiled: bool) -> set[str]:
    """The rivals of a kernel with a residual and a SiLU, in a network that is compiled or runs as it is."""
    (layer,) = read_network(nn.Conv2d(1, 4, 3, padding=1).eval(), images(4)).layers
    assert layer.module is not None
    assert layer.problem is not None
    problem = replace(layer.problem, epilogue="bias_add_silu")
    work = Work(problem, residual=True, activation="silu", compiled=compiled)
    times = race(work, layer.module, library, CPU)
    assert times is not None
    return {name for name, _ in times.rivals}


def channels_last(library: str) -> tuple[str, bool, float]:
    """A residual in NHWC: its epilogue, and the output's layout and difference."""
    added = network(lambda m, x: m.relu(m.two(x) + torch.cat([x, x], 1))).to(memory_format=torch.channels_last)
    x = images(4, 2).contiguous(memory_format=torch.channels_last)
    made, report = convert(added, x, library=library, margin=ALWAYS)
    laid_out = made(x).is_contiguous(memory_format=torch.channels_last)
    return next(row.kernel for row in report.rows if row.swapped), laid_out, difference(made, added, x)


class LinearLayers(nn.Module):
    """Linear layers of channels-last images and of sequences, one of which also reads rows that are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)
        self.scale = nn.Parameter(torch.rand(4, 1, 1))
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.narrow(functional.gelu(self.wide(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
        rows = (y * self.scale + x).flatten(2).transpose(1, 2)
        y = self.second(functional.gelu(self.first(rows))) + rows
        return y + self.first(rows[:, ::2]).sum()


def linear_layers(library: str) -> tuple[dict[str, tuple[str, str]], set[str], list[float]]:
    """The kernels and epilogues of linear layers, PyTorch's other operators, and differences."""
    made, report = convert(network := seeded(LinearLayers), last_images(2), library=library, margin=ALWAYS)
    swapped = {row.layer: (row.kernel, row.words[3]) for row in report.rows if row.swapped}
    left = {str(node.target) for node in made.graph.nodes if node.op == "call_function"}
    return swapped, left, [difference(made, network, last_images(n)) for n in (2, 3)]


def last_images(n: int) -> Tensor:
    """Channels-last images of four channels."""
    return images(n, 4).contiguous(memory_format=torch.channels_last)


def compiled(library: str) -> list[float]:
    """Differences of a compiled network for several numbers of images."""
    added = network(two_blocks)
    made, _ = convert(added, images(4), library=library, margin=ALWAYS)
    whole = torch.compile(made, backend="aot_eager", fullgraph=True)
    return [difference(whole, added, images(n)) for n in (4, 3, 6)]


def too_many(library: str) -> list[float]:
    """Differences for a number of images that the kernel rejects, and for one that it supports."""
    added = network(lambda m, x: torch.relu(m.few(x) + wide(x, 3)))
    made, report = convert(added, images(4), library=library, margin=ALWAYS)
    assert [row.kernel for row in report.rows if row.swapped] == ["tested.few"]
    return [difference(made, added, images(n)) for n in (9, 5)]


def broadcast_later(library: str) -> float:
    """The difference if one residual is given for all images, unlike when the network was converted."""

    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return torch.relu(self.conv(x) + z)

    added, z = seeded(TwoInputs), images(4, 4)
    made, report = convert(added, (images(4), z), library=library, margin=ALWAYS)
    assert [row.kernel for row in report.rows] == ["tested.relu"]
    return difference(lambda x: made(x, z[:1]), lambda x: added(x, z[:1]), images(4))


def relu_call(library: str) -> str:
    """The text of a call of a kernel that pads by 1, adds a residual and computes a ReLU."""
    arguments = (("pad_h", 1), ("pad_w", 1), ("epilogue", "bias_add_relu"))
    return Call(library, arguments, torch_shapes=True).text


def of_operator(library: str) -> tuple[nn.Conv2d, str]:
    conv = nn.Conv2d(1, 4, 3, padding=1).requires_grad_(requires_grad=False)
    return conv, relu_call(library)


def operator_checks(library: str) -> dict[str, str]:
    """PyTorch's own checks of the operator."""
    conv, rest = of_operator(library)
    answers: dict[str, str] = torch.library.opcheck(
        CONVOLUTION.operator, (images(4), conv.weight, conv.bias, images(4, 4), None, None, None, rest)
    )
    return answers


@torch.no_grad()
def operator(library: str, how: str) -> float:
    """The operator's difference from PyTorch, with a residual at an unusual address or of another dtype."""
    conv, rest = of_operator(library)
    x, z = images(5), images(5, 4)
    given = {
        "misaligned": torch.empty(5 * 4 * 144 + 1)[1:].view(5, 4, 12, 12).copy_(z),
        "strided": z.contiguous(memory_format=torch.channels_last),
        "autocast": z.bfloat16(),
        "no images": z[:0],
    }[how]
    x = x[: len(given)]
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        y = CONVOLUTION.operator(x, conv.weight, conv.bias, given, None, None, None, rest)
    expected = torch.relu(conv(x) + given)
    assert (y.dtype, y.shape) == (torch.float32, expected.shape)
    return float((y - expected).abs().max() / expected.abs().max()) if len(y) else 0.0


def refused(library: str, how: str) -> None:
    """Call the operator, or a converted convolution, with a residual that does not fit."""
    conv, _ = of_operator(library)
    x, z = images(4), images(4, 4)
    if how == "gradients":
        z.requires_grad_()
    elif how == "channels":
        z = images(4, 3)
    elif how == "images":
        z = z[:1]
    elif how == "dtype":
        z = z.half()
    bias = None if how == "no bias" else conv.bias
    activation = "softmax" if how == "activation" else "relu" if bias is not None else ""
    convolution(x, conv.weight, bias, z, padding=(1, 1), activation=activation, library=library)


class Bottleneck(nn.Module):
    """A block of torchvision's ResNet-50, with its names and in-place ReLUs."""

    def __init__(self, c: int, width: int, stride: int, *, downsample: bool) -> None:
        super().__init__()
        k = 4 * width
        self.conv1 = nn.Conv2d(c, width, 1)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1)
        self.conv3 = nn.Conv2d(width, k, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(c, k, 1, stride)) if downsample else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.conv1(x))
        out = self.relu(self.conv2(out))
        out = self.conv3(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet50(nn.Module):
    """torchvision's ResNet-50 with folded batch norms, written here so that torchvision is not needed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        blocks, c = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for at in range(count):
                blocks.append(Bottleneck(c, width, stride if at == 0 else 1, downsample=at == 0))
                c = 4 * width
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.maxpool(self.relu(self.conv1(x))))


def hooked(library: str, part: str) -> tuple[str, int, float]:
    """A network whose dropout or ReLU has a hook: the convolution's epilogue, the hook's calls, the difference."""
    added = network(lambda m, x: m.relu(m.dropout(m.conv(x)) + wide(x)))
    calls: list[int] = []
    added.get_submodule(part).register_forward_hook(lambda *_: calls.append(1))
    made, report = convert(added, images(4), library=library, margin=ALWAYS)
    calls.clear()
    with torch.no_grad():
        made(images(4))
    epilogue = next(row.problem.epilogue for row in report.rows if row.problem is not None)
    return epilogue, len(calls), difference(made, added, images(4))


def copied(library: str) -> float:
    """The difference of a copy of a converted network."""
    added = network(two_blocks)
    made, _ = convert(added, images(4), library=library, margin=ALWAYS)
    return difference(copy.deepcopy(made), added, images(4))
