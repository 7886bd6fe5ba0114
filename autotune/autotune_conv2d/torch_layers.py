"""The convolutions of a PyTorch network: their problems, what follows them, and the study that tunes them."""

from __future__ import annotations

import dataclasses
import json
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from .library import Problem

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_ADDITIONS: tuple[Callable[..., object], ...] = (operator.add, operator.iadd, torch.add)
_RELUS: tuple[Callable[..., Tensor], ...] = (nn.functional.relu, nn.functional.relu_, torch.relu, torch.relu_)


class TrainingMode(RuntimeError):
    """A network that trains was given, or a tuned layer was to be trained: the kernels have no backward pass."""


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """An `nn.Conv2d` in a network that was run once."""

    name: str
    """its path, such as layer1.0.conv1"""
    conv: nn.Conv2d
    problem: Problem | None
    """without a ReLU; None where no kernel could take its place"""
    why_not: str
    """why `problem` is None"""
    relu: fx.Node | str | None
    """the ReLU that alone reads its output: a node of the network's graph, or the path of a module; None: no such"""
    residual: bool = False
    """an addition of a tensor of the output's shape alone reads its output, and a ReLU alone the sum"""


@dataclass(frozen=True, slots=True)
class Network:
    """A network's convolutions, in the order of its modules."""

    layers: tuple[ConvLayer, ...]
    graph: fx.GraphModule | None
    """the network as a graph, whose nodes the layers' ReLUs are; None where it cannot be traced"""


def read_network(module: nn.Module, example: object) -> Network:
    """Run a network on an example and find its convolutions. `example_arguments` says what an example may be.

    Raises TrainingMode where some part of it trains.
    """
    for name, part in module.named_modules():
        if part.training:
            where = f"its part {name}" if name else "the network"
            raise TrainingMode(f"{where} is in training mode; call eval() first: tuned kernels have no backward pass")
    arguments = example_arguments(module, example)
    hooked = {conv for conv in _convs(module).values() if conv._forward_hooks or conv._forward_pre_hooks}
    with torch.no_grad():
        with _watched(module) as seen:
            expected = module(*arguments)
        graph = _traced(module, arguments, expected)
    relus: Mapping[str, fx.Node | str] = _relus_in_sequence(module, seen) if graph is None else _relus_in_graph(graph)
    residuals = frozenset() if graph is None else _residuals_in_graph(graph, arguments)
    layers = []
    for name, conv in _convs(module).items():
        problem = "has forward hooks" if conv in hooked else _problem(conv, seen.inputs.get(conv, []))
        why_not = problem if isinstance(problem, str) else ""
        served = None if isinstance(problem, str) else problem
        layers.append(ConvLayer(name, conv, served, why_not, relus.get(name), name in residuals))
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


def study(module: nn.Module, example: object, *, name: str, **settings: str | int | float) -> str:
    """The text of a study file that tunes the convolutions of a network for an example's shapes.

    A shape that several layers have is one layer with a count; what no kernel can replace is a comment. `settings` are
    further keys of the study, such as trials=100.
    """
    first: dict[Problem, str] = {}
    counts: Counter[Problem] = Counter()
    notes = []
    for layer in read_network(module, example).layers:
        if layer.problem is None:
            notes.append(f"# {layer.name}: left out: {layer.why_not}")
            continue
        problem = with_relu(layer.problem) if layer.relu is not None else layer.problem
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


def with_relu(problem: Problem) -> Problem:
    """The problem with a ReLU behind its bias; without a bias, the problem itself: no epilogue is a ReLU alone."""
    return dataclasses.replace(problem, epilogue="bias_relu") if problem.epilogue == "bias" else problem


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
    """how often a ReLU was given the very tensor that a convolution had returned"""
    runs: Counter[nn.Module] = field(default_factory=Counter)
    """of ReLUs and sequences"""


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
        elif isinstance(part, (nn.ReLU, nn.Sequential)):
            hooks.append(part.register_forward_pre_hook(begun))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _traced(module: nn.Module, arguments: tuple[object, ...], expected: object) -> fx.GraphModule | None:
    """The network as a graph, where it has one that computes the same on the example."""
    try:
        nodes = fx.Tracer().trace(module)
        for node in nodes.nodes:
            node.type = None  # an annotation, which may be a string that names nothing in the graph's own code
        graph = fx.GraphModule(module, nodes)
        torch.testing.assert_close(graph(*arguments), expected, equal_nan=True)
    except Exception:  # noqa: BLE001 - tracing runs the network's own code on stand-ins, which may raise anything
        return None
    return graph


def _relus_in_graph(graph: fx.GraphModule) -> dict[str, fx.Node]:
    """A convolution's path to the ReLU that is the only one to read its only output."""
    modules = dict(graph.named_modules())
    uses = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    found = {}
    for node in graph.graph.nodes:
        if (
            node.op == "call_module"
            and isinstance(modules[str(node.target)], nn.Conv2d)
            and uses[str(node.target)] == 1
        ):
            readers = list(node.users)
            if len(readers) == 1 and _is_relu(readers[0], modules):
                found[str(node.target)] = readers[0]
    return found


def _is_relu(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU
    return node.target in _RELUS if node.op == "call_function" else node.target in ("relu", "relu_")


def _residuals_in_graph(graph: fx.GraphModule, arguments: tuple[object, ...]) -> frozenset[str]:
    """Paths of convolutions behind which a tensor is added and a ReLU follows, as in a ResNet's blocks.

    Of two convolutions that meet in an addition one has it, the first operand: one kernel can take the sum.
    """
    with torch.no_grad():
        ShapeProp(graph).propagate(*arguments)
    modules = dict(graph.named_modules())
    found: set[str] = set()

    def takes(node: fx.Node) -> bool:
        """Whether a convolution made it that nothing else reads."""
        conv = node.op == "call_module" and isinstance(modules[str(node.target)], nn.Conv2d)
        return conv and len(node.users) == 1

    for node in graph.graph.nodes:
        adds = node.target in _ADDITIONS if node.op == "call_function" else node.target in ("add", "add_")
        readers, operands = list(node.users), [each for each in node.args if isinstance(each, fx.Node)]
        if not adds or node.op == "call_module" or len(readers) != 1 or len(operands) != 2:
            continue
        shapes = {getattr(each.meta.get("tensor_meta"), "shape", None) for each in operands}
        if len(shapes) == 1 and None not in shapes and not node.kwargs and _is_relu(readers[0], modules):
            own = (str(each.target) for each in operands if takes(each))
            found.update(islice(own, 1))
    return frozenset(found)


def _relus_in_sequence(module: nn.Module, seen: _Seen) -> dict[str, str]:
    """For a network without a graph: ReLUs that follow a convolution in an nn.Sequential that ran as a whole, once."""
    found = {}
    for path, sequence in module.named_modules():
        if type(sequence) is not nn.Sequential or seen.runs[sequence] != 1:
            continue
        parts = list(sequence.named_children())
        for (name, conv), (relu_name, relu) in pairwise(parts):
            once = type(relu) is nn.ReLU and seen.runs[relu] == 1 and seen.fed[conv, relu] == 1
            if once and isinstance(conv, nn.Conv2d) and len(seen.inputs[conv]) == 1:
                prefix = f"{path}." if path else ""
                found[f"{prefix}{name}"] = f"{prefix}{relu_name}"
    return found
