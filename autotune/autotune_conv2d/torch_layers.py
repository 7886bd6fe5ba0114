"""The convolutions of a PyTorch network: their problems, and what follows them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from .conv2d import EPILOGUES, Problem, epilogue_name
from .torch_activations import has_hooks, word_of_module
from .torch_convolution import DTYPES
from .torch_example import (
    Seen,
    changes_are_counted,
    convolutions,
    example_arguments,
    is_channels_last,
    refuse_training,
    run,
    watched,
)
from .torch_graph import Tail, tails, traced


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """An `nn.Conv2d` in a network that was run once."""

    name: str
    """its path, such as layer1.0.conv1"""
    conv: nn.Conv2d
    problem: Problem | None
    """the convolution and its bias; None where no kernel could take its place"""
    why_not: str
    """why `problem` is None"""
    tail: Tail
    """what follows that a kernel can take"""

    @property
    def residual(self) -> bool:
        """Whether a tensor as large as its output is added to it."""
        return self.tail.addition is not None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a kernel may compute in its place, that with the most of what follows first; () where none can.

        Where something follows a convolution without a bias, the kernel's bias is zeros.
        """
        if self.problem is None:
            return ()
        follow = dict.fromkeys([(self.residual, self.tail.activation), (self.residual, "")])
        names = [epilogue_name(residual=residual, activation=word) for residual, word in follow if residual or word]
        return tuple(
            dataclasses.replace(self.problem, epilogue=name)
            for name in (*names, self.problem.epilogue)
            if name in EPILOGUES
        )


@dataclass(frozen=True, slots=True)
class Network:
    """A network's convolutions, in the order of its modules."""

    layers: tuple[ConvLayer, ...]
    graph: fx.GraphModule | None
    """the network as a graph, whose nodes the layers' tails are; None where it cannot be traced"""


def read_network(module: nn.Module, example: object) -> Network:
    """Run a network on an example and find its convolutions. `example_arguments` says what an example may be.

    Raises TrainingMode where some part of it trains.
    """
    refuse_training(module)
    arguments = example_arguments(module, example)
    hooked = {conv for conv in convolutions(module).values() if has_hooks(conv)}
    with torch.no_grad():
        with watched(module, word_of_module) as seen:
            expected = run(module, arguments)
        graph = traced(module, arguments, expected)
    # The layout of what could be either: one pixel in, filters of one pixel.
    stored = (tensor for conv, inputs in seen.inputs.items() for tensor in (conv.weight, *inputs))
    either = "nhwc" if any(map(is_channels_last, stored)) else "nchw"
    problems = {
        name: "has forward hooks" if conv in hooked else _problem(conv, seen.inputs.get(conv, []), either)
        for name, conv in convolutions(module).items()
    }
    served = {name: problem for name, problem in problems.items() if isinstance(problem, Problem)}
    layouts = {name: problem.layout for name, problem in served.items()}
    follows = _tails_in_sequence(module, seen) if graph is None else tails(graph, arguments, layouts)
    layers = []
    for name, conv in convolutions(module).items():
        problem, tail = problems[name], follows.get(name) if name in served else None
        why_not = problem if isinstance(problem, str) else ""
        layers.append(ConvLayer(name, conv, served.get(name), why_not, tail or Tail()))
    return Network(tuple(layers), graph)


def _problem(conv: nn.Conv2d, inputs: list[Tensor], either: str) -> Problem | str:
    """What a convolution computes, or why no kernel can take its place; `either`: the layout of what has both."""
    if type(conv) is not nn.Conv2d:
        return f"is a {type(conv).__name__}, whose forward may be its own"
    if len(inputs) != 1:
        return f"ran {len(inputs)} times on the example" if inputs else "did not run on the example"
    x, padding = inputs[0], _padding(conv)
    if not changes_are_counted(conv):
        return "its filters are inference tensors, whose changes PyTorch does not count"
    if conv.padding_mode != "zeros":
        return f"pads with {conv.padding_mode}, not with zeros"
    if padding is None:
        return "pads one side more than the other"
    if x.dim() != 4:
        return f"its input has {x.dim()} dimensions, not 4"
    if x.dtype not in DTYPES or x.dtype != conv.weight.dtype:
        return f"computes {conv.weight.dtype} filters on {x.dtype} images"
    n, c, h, w = x.shape
    sizes = (n, c, h, w, conv.out_channels, *conv.kernel_size, *conv.stride, *padding, *conv.dilation, conv.groups)
    layout = _layout(x, conv.weight, either)
    return Problem.of(sizes, DTYPES[x.dtype], layout, "none" if conv.bias is None else "bias")


def _layout(x: Tensor, w: Tensor, either: str) -> str:
    if is_channels_last(x) or is_channels_last(w):
        return "nhwc"
    both = all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (x, w))
    return either if both else "nchw"


def _padding(conv: nn.Conv2d) -> tuple[int, int] | None:
    """Padding of height and width; None where the two sides differ."""
    if conv.padding == "valid":
        return (0, 0)
    if conv.padding == "same":
        totals = [dilation * (taps - 1) for dilation, taps in zip(conv.dilation, conv.kernel_size, strict=True)]
        return None if any(total % 2 for total in totals) else (totals[0] // 2, totals[1] // 2)
    return (int(conv.padding[0]), int(conv.padding[1]))


def _tails_in_sequence(module: nn.Module, seen: Seen) -> dict[str, Tail]:
    """For a network without a graph: activations behind a convolution in an nn.Sequential, which alone has it.

    The kernel takes the convolution's place everywhere, also where the activation stays.
    """
    places = Counter(child for parent in module.modules() for child in parent._modules.values())
    words = (
        (name, word_of_module(module.get_submodule(at)), at)
        for name, at in seen.followers(module)
        if places[module.get_submodule(name)] == 1
    )
    return {name: Tail(None, word, at) for name, word, at in words if word}
