"""The convolutions of a PyTorch network: their problems, what follows them, and the study that tunes them."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, fx, nn

from .library import EPILOGUES, Problem, epilogue_name
from .torch_activations import has_hooks, word_of_module
from .torch_convolution import DTYPES
from .torch_graph import Tail, tails, traced


class TrainingMode(RuntimeError):
    """A network that trains was given, or a tuned layer was to be trained: the kernels have no backward pass."""


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
    """what follows that a kernel can take; nothing behind a convolution without a bias: no epilogue is for that"""

    @property
    def residual(self) -> bool:
        """Whether a tensor as large as its output is added to it."""
        return self.tail.addition is not None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a kernel may compute in its place, that with the most of what follows first; () where none can."""
        if self.problem is None or self.problem.epilogue == "none":
            return () if self.problem is None else (self.problem,)
        rest = [(self.residual, self.tail.activation), (self.residual, ""), (False, "")]
        names = dict.fromkeys(epilogue_name(residual=residual, activation=word) for residual, word in rest)
        return tuple(dataclasses.replace(self.problem, epilogue=name) for name in names if name in EPILOGUES)


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
    for name, part in module.named_modules():
        if part.training:
            where = f"its part {name}" if name else "the network"
            raise TrainingMode(f"{where} is in training mode; call eval() first: tuned kernels have no backward pass")
    arguments = example_arguments(module, example)
    hooked = {conv for conv in _convs(module).values() if has_hooks(conv)}
    with torch.no_grad():
        with _watched(module) as seen:
            expected = module(*arguments)
        graph = traced(module, arguments, expected)
    problems = {
        name: "has forward hooks" if conv in hooked else _problem(conv, seen.inputs.get(conv, []))
        for name, conv in _convs(module).items()
    }
    served = {name: problem for name, problem in problems.items() if isinstance(problem, Problem)}
    layouts = {name: problem.layout for name, problem in served.items() if problem.epilogue != "none"}
    follows = _tails_in_sequence(module, seen) if graph is None else tails(graph, arguments, layouts)
    layers = []
    for name, conv in _convs(module).items():
        problem, tail = problems[name], follows.get(name) if name in layouts else None
        why_not = problem if isinstance(problem, str) else ""
        layers.append(ConvLayer(name, conv, served.get(name), why_not, tail or Tail()))
    return Network(tuple(layers), graph)


def example_arguments(module: nn.Module, example: object) -> tuple[object, ...]:
    """The arguments of a call: a tensor, a tuple of arguments, or the sizes of a tensor, which is made of noise."""
    if isinstance(example, Tensor):
        return (example,)
    if not isinstance(example, (tuple, list)) or not example:
        raise TypeError(f"example: expected a tensor, a tuple of arguments or the sizes of a tensor, got {example!r}")
    if all(isinstance(size, int) for size in example):
        like = next(module.parameters(), torch.empty(0))
        return (torch.randn(tuple(example), device=like.device, dtype=like.dtype),)
    return tuple(example)


def study(
    module: nn.Module, example: object, *, name: str, residuals: bool = True, **settings: str | int | float
) -> str:
    """The text of a study file that tunes the convolutions of a network for an example's shapes.

    A shape that several layers have is one layer with a count, if they have one epilogue; what no kernel can replace is
    a comment. `residuals` False leaves additions to PyTorch: layers are then for families that add none, too.
    `settings` are further keys of the study, such as trials=100.
    """
    first: dict[Problem, str] = {}
    counts: Counter[Problem] = Counter()
    notes = []
    for layer in read_network(module, example).layers:
        if layer.problem is None:
            notes.append(f"# {layer.name}: left out: {layer.why_not}")
            continue
        problem = layer.problems[0] if residuals or not layer.residual else layer.problem
        first.setdefault(problem, layer.name.replace(".", "_") or "conv")
        counts[problem] += 1
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": name, **settings}.items()]
    tables = [_layer_table(layer_name, problem, counts[problem]) for problem, layer_name in first.items()]
    return "\n".join([*lines, *notes, *tables]) + "\n"


def _layer_table(name: str, problem: Problem, count: int) -> str:
    pairs = {key: [getattr(problem, f"{key}_h"), getattr(problem, f"{key}_w")] for key in ("stride", "pad", "dilation")}
    words = {key: getattr(problem, key) for key in ("groups", "dtype", "layout", "epilogue")}
    sizes = {key: getattr(problem, key) for key in ("n", "c", "h", "w", "k", "r", "s")}
    values = {"name": name, **sizes, **pairs, **words, "count": count}
    return "\n".join(["", "[[layer]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])


def _convs(module: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.Conv2d)}


def _problem(conv: nn.Conv2d, inputs: list[Tensor]) -> Problem | str:
    """What a convolution computes, or why no kernel can take its place."""
    if type(conv) is not nn.Conv2d:
        return f"is a {type(conv).__name__}, whose forward may be its own"
    if len(inputs) != 1:
        return f"ran {len(inputs)} times on the example" if inputs else "did not run on the example"
    x, padding = inputs[0], _padding(conv)
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
    layout = "nhwc" if _channels_last(x) or _channels_last(conv.weight) else "nchw"
    return Problem.of(sizes, DTYPES[x.dtype], layout, "none" if conv.bias is None else "bias")


def _channels_last(x: Tensor) -> bool:
    """Whether a tensor is stored NHWC; one that could be either is NCHW."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _padding(conv: nn.Conv2d) -> tuple[int, int] | None:
    """Padding of height and width; None where the two sides differ."""
    if conv.padding == "valid":
        return (0, 0)
    if conv.padding == "same":
        totals = [dilation * (taps - 1) for dilation, taps in zip(conv.dilation, conv.kernel_size, strict=True)]
        return None if any(total % 2 for total in totals) else (totals[0] // 2, totals[1] // 2)
    return (int(conv.padding[0]), int(conv.padding[1]))


@dataclass(slots=True)
class _Seen:
    """What happened in a pass."""

    inputs: dict[nn.Conv2d, list[Tensor]] = field(default_factory=dict)
    """as meta tensors: shape, dtype and strides"""
    outputs: dict[nn.Conv2d, weakref.ref[Tensor]] = field(default_factory=dict)
    fed: Counter[tuple[nn.Module, nn.Module]] = field(default_factory=Counter)
    """how often an activation was given the very tensor that a convolution had returned"""
    runs: Counter[nn.Module] = field(default_factory=Counter)
    """of activations and sequences"""


@contextmanager
def _watched(module: nn.Module) -> Iterator[_Seen]:
    seen = _Seen()

    def convolved(conv: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        seen.inputs.setdefault(conv, []).append(torch.empty_like(inputs[0], device="meta"))
        seen.outputs[conv] = weakref.ref(output)

    def begun(part: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.runs[part] += 1
        for conv, output in seen.outputs.items():
            seen.fed[conv, part] += output() is inputs[0]

    hooks = []
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            hooks.append(part.register_forward_hook(convolved))
        elif isinstance(part, nn.Sequential) or word_of_module(part):
            hooks.append(part.register_forward_pre_hook(begun))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _tails_in_sequence(module: nn.Module, seen: _Seen) -> dict[str, Tail]:
    """For a network without a graph: activations behind a convolution in an nn.Sequential that ran as a whole, once."""
    found = {}
    for path, sequence in module.named_modules():
        if type(sequence) is not nn.Sequential or seen.runs[sequence] != 1:
            continue
        parts = list(sequence.named_children())
        for (name, conv), (activation_name, activation) in pairwise(parts):
            word = word_of_module(activation)
            once = word and seen.runs[activation] == 1 and seen.fed[conv, activation] == 1
            if once and isinstance(conv, nn.Conv2d) and len(seen.inputs[conv]) == 1:
                prefix = f"{path}." if path else ""
                found[f"{prefix}{name}"] = Tail(None, word, f"{prefix}{activation_name}")
    return found
