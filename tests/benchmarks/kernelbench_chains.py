"""KernelBench's convolutions as PyTorch modules: the convolutions of level 1, and the chains of level 2.

The sizes are those of the studies `kernelbench-tf32` and `kernelbench-level2-tf32`. All problems with a convolution
are here, except kb2-26, which has a second input. Batch norms use calibrated statistics, and dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.problem import Layer, Problem
from autotune.study_reader import find_study, load_study

LEVELS = {1: "kernelbench-tf32", 2: "kernelbench-level2-tf32"}
AXES = "dhw"
TAPS = {"d": "t", "h": "r", "w": "s"}


class Step(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class With(nn.Module):
    """A function of a tensor and a random parameter, such as one value for each channel."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *sizes: int) -> None:
        super().__init__()
        self.function = function
        self.parameter = nn.Parameter(torch.randn(sizes))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.parameter)


class Twice(With):
    """Two products with the same parameter and something in between."""

    def __init__(self, between: nn.Module, *sizes: int) -> None:
        super().__init__(torch.mul, *sizes)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.between(x * self.parameter) * self.parameter


class Around(nn.Module):
    """The sum of a tensor and of the outputs of other modules for it."""

    def __init__(self, *steps: nn.Module) -> None:
        super().__init__()
        self.steps = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.steps(x)


@dataclass(frozen=True, slots=True)
class Chain:
    """A problem: the layer of the study, and the modules before and after the convolution."""

    layer: str
    after: Callable[[], Sequence[nn.Module]] = tuple
    halved: bool = False
    """whether an average pool halves x before the convolution"""


def add(*sizes: int) -> With:
    """Add a parameter."""
    return With(torch.add, *sizes)


def times(*sizes: int) -> With:
    """Multiply by a parameter."""
    return With(torch.mul, *sizes)


def each(channels: int, dims: int) -> tuple[int, ...]:
    """The sizes of a parameter with a value for each channel."""
    return (channels, *(1,) * dims)


def least(x: Tensor) -> Tensor:
    """The smallest channel."""
    return x.min(1, keepdim=True)[0]


def mean(*dims: int) -> Step:
    """Means that keep their dimensions."""
    return Step(partial(torch.mean, dim=dims, keepdim=True))


def total(*dims: int, keepdim: bool = False) -> Step:
    """Sums."""
    return Step(partial(torch.sum, dim=dims, keepdim=keepdim))


def log_sum_exp() -> Step:
    """The logarithm of the sum of all channels' exponentials."""
    return Step(partial(torch.logsumexp, dim=1, keepdim=True))


def clamp(low: float | None = None, high: float | None = None) -> Step:
    """Limits."""
    return Step(partial(torch.clamp, min=low, max=high))


def softmax() -> nn.Module:
    """The softmax over channels."""
    return nn.Softmax(dim=1)


def flat_softmax(x: Tensor) -> Tensor:
    """The softmax over all pixels of a channel."""
    return x.flatten(2).softmax(2).view(x.shape)


LEVEL_2: Mapping[str, Chain] = {
    "kb2-1": Chain("kb2-1", lambda: [nn.ReLU(), add(*each(128, 2))]),
    "kb2-2": Chain("kb2-2", lambda: [add(*each(64, 2)), clamp(0, 1), Step(lambda x: x * 2.0), clamp(0, 1), halved()]),
    "kb2-3": Chain("kb2-3", lambda: [add(), nn.LayerNorm(64), nn.AvgPool3d(2), nn.GELU()]),
    "kb2-4": Chain("kb2-4", lambda: [nn.Mish(), nn.Mish()]),
    "kb2-5": Chain("kb2-5", lambda: [With(torch.sub, *each(64, 2)), nn.Tanh()]),
    "kb2-6": Chain("kb2-6", lambda: [softmax(), nn.MaxPool3d(2), nn.MaxPool3d(2)]),
    "kb2-7": Chain("kb2-7", lambda: [nn.ReLU(), nn.LeakyReLU(), nn.GELU(), nn.Sigmoid(), add(*each(32, 3))]),
    "kb2-8": Chain("kb2-8", lambda: [halved(), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1), add(*each(16, 3)), total(1)]),
    "kb2-10": Chain("kb2-10", lambda: [nn.MaxPool2d(2), nn.Hardtanh(), mean(2, 3), nn.Tanh()]),
    "kb2-11": Chain("kb2-11", lambda: [nn.BatchNorm2d(128), nn.Tanh(), nn.MaxPool2d(2), nn.GroupNorm(8, 128)]),
    "kb2-13": Chain("kb2-13", lambda: [mean(2), add(*each(64, 3)), softmax(), nn.Tanh(), doubled()]),
    "kb2-15": Chain("kb2-15", lambda: [nn.BatchNorm3d(32), Step(lambda x: x - x.mean((2, 3, 4), keepdim=True))]),
    "kb2-16": Chain("kb2-2", lambda: [nn.Mish(), Step(lambda x: x + 0.5), nn.Hardtanh(), doubled()]),
    "kb2-17": Chain("kb2-17", lambda: [nn.InstanceNorm2d(128), halved()]),
    "kb2-19": Chain("kb2-19", lambda: [nn.GELU(), nn.GroupNorm(8, 64)]),
    "kb2-20": Chain("kb2-20", lambda: [With(lambda x, b: ((x + b) + x) * x + x, *each(64, 3))]),
    "kb2-21": Chain("kb2-21", lambda: [add(*each(32, 2)), times(*each(32, 2)), nn.Sigmoid(), nn.GroupNorm(8, 32)]),
    "kb2-23": Chain("kb2-23", lambda: [nn.GroupNorm(8, 24), Step(lambda x: x.mean((1, 2, 3, 4)))]),
    "kb2-24": Chain("kb2-23", lambda: [Step(lambda x: x.min(2)[0]), softmax()]),
    "kb2-25": Chain("kb2-25", lambda: [Step(least), nn.Tanh(), nn.Tanh()]),
    "kb2-27": Chain("kb2-27", lambda: [nn.Hardswish(), nn.GroupNorm(4, 16), Step(lambda x: x.mean((2, 3, 4)))]),
    "kb2-31": Chain("kb2-17", lambda: [clamp(high=0.5), add(*each(128, 2)), doubled()]),
    "kb2-32": Chain("kb2-4", lambda: [doubled(), Step(least)]),
    "kb2-34": Chain("kb2-34", lambda: [nn.LayerNorm(64), nn.GELU(), Step(lambda x: x * 1.0)]),
    "kb2-35": Chain("kb2-17", lambda: [minus(0.5), nn.Hardswish(), nn.MaxPool2d(2), nn.Mish()]),
    "kb2-36": Chain("kb2-36", lambda: [Step(least), total(2, keepdim=True), nn.GELU(), add(1, 1, 1)]),
    "kb2-38": Chain("kb2-3", lambda: [clamp(0, 1), Step(flat_softmax), times(1, *each(64, 3))], halved=True),
    "kb2-42": Chain(
        "kb2-42", lambda: [mean(2, 3), add(*each(128, 2)), log_sum_exp(), total(2, 3), Step(lambda x: x * 10)]
    ),
    "kb2-43": Chain("kb2-43", lambda: [nn.MaxPool3d(2), log_sum_exp(), nn.ReLU()]),
    "kb2-44": Chain("kb2-36", lambda: [halved(), mean(2, 3), mean(2, 3)]),
    "kb2-46": Chain("kb2-17", lambda: [minus(0.5), nn.Tanh(), minus(0.2), nn.AvgPool2d(2)]),
    "kb2-47": Chain("kb2-47", lambda: [nn.Mish(), nn.Tanh()]),
    "kb2-48": Chain("kb2-48", lambda: [times(*each(16, 3)), nn.Tanh(), times(*each(16, 3)), nn.Sigmoid()]),
    "kb2-49": Chain("kb2-20", lambda: [softmax(), nn.Sigmoid()]),
    "kb2-50": Chain("kb2-50", lambda: [times(), nn.AvgPool3d(2), add(*each(16, 3)), times()]),
    "kb2-52": Chain("kb2-52", lambda: [Step(lambda x: functional.softplus(x).tanh() * x), nn.BatchNorm2d(128)]),
    "kb2-54": Chain("kb2-54", lambda: [times(*each(64, 2)), nn.LeakyReLU(), nn.GELU()]),
    "kb2-57": Chain("kb2-57", lambda: [nn.ReLU(), Step(lambda x: x * ((x + 3) / 6).clamp(0, 1))]),
    "kb2-58": Chain(
        "kb2-50",
        lambda: [
            log_sum_exp(),
            Step(lambda x: x * torch.sigmoid(x + 3) / 6),
            With(torch.sub, 1, 1, 1, 1),
            clamp(-1, 1),
        ],
    ),
    "kb2-60": Chain("kb2-60", lambda: [swish(), nn.GroupNorm(4, 16), nn.Hardswish()]),
    "kb2-61": Chain("kb2-61", lambda: [nn.ReLU(), nn.GroupNorm(8, 128)]),
    "kb2-65": Chain("kb2-65", lambda: [nn.AvgPool2d(4), nn.Sigmoid(), total(1, 2, 3)]),
    "kb2-67": Chain("kb2-67", lambda: [nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]),
    "kb2-69": Chain("kb2-69", lambda: [nn.Hardswish(), nn.ReLU()]),
    "kb2-71": Chain("kb2-71", lambda: [halved(), nn.LeakyReLU()]),
    "kb2-72": Chain("kb2-72", lambda: [nn.BatchNorm3d(16), nn.AvgPool3d(2), nn.AvgPool3d(2)]),
    "kb2-73": Chain("kb2-71", lambda: [nn.BatchNorm2d(64), doubled()]),
    "kb2-74": Chain("kb2-74", lambda: [nn.LeakyReLU(0.2), times(*each(32, 3)), nn.LeakyReLU(0.2), nn.MaxPool3d(2)]),
    "kb2-77": Chain("kb2-77", lambda: [doubled(), nn.BatchNorm3d(128), nn.AdaptiveAvgPool3d(1)]),
    "kb2-78": Chain("kb2-78", lambda: [nn.MaxPool3d(2), nn.MaxPool3d(3), total(1, keepdim=True)]),
    "kb2-79": Chain(
        "kb2-6",
        lambda: [
            Twice(nn.Sequential(nn.InstanceNorm3d(16), clamp(-1, 1)), *each(16, 3)),
            Step(partial(torch.amax, dim=1)),
        ],
    ),
    "kb2-82": Chain("kb2-82", lambda: [nn.Tanh(), doubled(), add(*each(64, 2)), nn.MaxPool2d(4)]),
    "kb2-83": Chain("kb2-48", lambda: [nn.GroupNorm(8, 16), clamp(high=0), clamp(0, 1)]),
    "kb2-85": Chain("kb2-71", lambda: [nn.GroupNorm(16, 64), times(*each(64, 2)), nn.MaxPool2d(4), clamp(0, 1)]),
    "kb2-87": Chain("kb2-82", lambda: [minus(0.5), minus(0.2), nn.Mish()]),
    "kb2-89": Chain(
        "kb2-89",
        lambda: [
            nn.MaxPool3d(2),
            softmax(),
            With(torch.sub, 1, *each(16, 3)),
            swish(),
            Step(partial(torch.amax, dim=1)),
        ],
    ),
    "kb2-90": Chain("kb2-90", lambda: [nn.LeakyReLU(0.2), add(*each(64, 3)), clamp(-1, 1), nn.GELU()]),
    "kb2-91": Chain("kb2-91", lambda: [softmax(), add(*each(128, 2)), doubled(), nn.Sigmoid()]),
    "kb2-92": Chain("kb2-71", lambda: [Around(nn.GroupNorm(16, 64), nn.Tanh(), nn.Hardswish()), log_sum_exp()]),
    "kb2-93": Chain("kb2-93", lambda: [Step(lambda x: x + 0.5), clamp(high=0), nn.GELU(), doubled()]),
    "kb2-96": Chain("kb2-50", lambda: [halved(), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1), clamp(0, 1)]),
    "kb2-100": Chain("kb2-100", lambda: [clamp(-1), halved()]),
}


def halved() -> Step:
    """Divide by two."""
    return Step(lambda x: x / 2.0)


def doubled() -> Step:
    """Multiply by two."""
    return Step(lambda x: x * 2.0)


def minus(number: float) -> Step:
    """Subtract a number."""
    return Step(lambda x: x - number)


def swish() -> Step:
    """x * sigmoid(x)"""
    return Step(lambda x: torch.sigmoid(x) * x)


@cache
def layers(level: int) -> Mapping[str, Layer]:
    """The layers of a level's study by name."""
    return {layer.name: layer for layer in load_study(find_study(LEVELS[level])).layers}


def chains() -> dict[str, Chain]:
    """All problems by name, level 1 first."""
    return {**{name: Chain(name) for name in layers(1)}, **LEVEL_2}


def problem_of(name: str) -> Problem:
    """The convolution of a problem."""
    return layers(2 if name in LEVEL_2 else 1)[chains()[name].layer].problem


def convolution(problem: Problem, *, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution of one to three dimensions as PyTorch's module, and the sides of its input."""
    values = problem.values
    axes = [axis for axis in AXES if values.get(axis, 1) != 1]
    kind = "ConvTranspose" if problem.operation.name == "conv_transpose" else "Conv"

    def sizes(*names: str, default: int = 0) -> tuple[int, ...]:
        found = (
            next((values[f"{name}_{axis}"] for name in names if f"{name}_{axis}" in values), default) for axis in axes
        )
        return tuple(map(int, found))

    options = {"stride": sizes("stride"), "padding": sizes("padding", "pad"), "dilation": sizes("dilation")}
    if kind == "ConvTranspose":
        options["output_padding"] = sizes("output_padding")
    kernel = tuple(int(values[TAPS[axis]]) for axis in axes)
    module = getattr(nn, f"{kind}{len(axes)}d")(
        values["c"], values["k"], kernel, groups=values["groups"], bias=bias, **options
    )
    return module, tuple(int(values[axis]) for axis in axes)


def built(name: str, *, n: int | None = None, most: int | None = None) -> tuple[nn.Module, tuple[int, ...]]:
    """A problem's module and the sizes of its input: of `n` images, sides of at most `most`, if given."""
    chain, problem, level = chains()[name], problem_of(name), 2 if name in LEVEL_2 else 1
    conv, sides = convolution(problem, bias=level == 2 and name != "kb2-61")
    if chain.halved:
        sides = tuple(2 * side for side in sides)
    sides = tuple(side if most is None else min(side, most) for side in sides)
    before = [nn.AvgPool3d(2)] if chain.halved else []
    module = nn.Sequential(*before, conv, *chain.after())
    return module, (n or int(problem.values["n"]), int(problem.values["c"]), *sides)
