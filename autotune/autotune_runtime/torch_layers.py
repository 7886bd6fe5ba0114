"""Find a PyTorch network's layers that kernels may compute, and replace operators by modules with kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from . import network_layers
from .convolution import Problem
from .fusion import Front, Fused, LayerProblem, fuse
from .plain_problems import BatchNormProblem, ConcatProblem, NormProblem
from .torch_attention import fast_attention
from .torch_call import STORED
from .torch_capture import Part, capture, given_to
from .torch_convolution import (
    Convolution,
    JoinedConvolution,
    LinearLayer,
    ShuffledConvolution,
    UpsampledConvolution,
)
from .torch_example import changes_are_counted, example_arguments, examples_of, refuse_training, replaced
from .torch_folding import scale_and_shift, with_scale_and_shift
from .torch_graph import Read, arguments_of, attribute, read
from .torch_plain import MODULES, Plain

_PERMUTE, _UNSQUEEZE = torch.ops.aten.permute.default, torch.ops.aten.unsqueeze.default
_SQUEEZE = torch.ops.aten.squeeze.dim
_ASSERT = torch.ops.aten._assert_tensor_metadata.default
_MOST_DEVIATIONS = 32.0
"""Largest mean, in standard deviations, of a batch norm whose scale and shift a kernel reads in 16 bits."""
NOT_COUNTED = "the network has inference tensors, whose changes PyTorch does not count"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, such as a convolution, in a network that has run once."""

    name: str
    """name of the layer's weights in the model, such as layer1.0.conv1"""
    module: Convolution | Plain | None
    """the layer with its current parameters; None if no kernel can compute it"""
    problem: LayerProblem | None
    """the layer without the operators after it; None if no kernel can compute it"""
    why_not: str
    """why `problem` is None"""
    fused: Fused | None
    """the layer and the operators that the layer's kernel can fuse; None if no kernel can compute the layer"""
    node: fx.Node
    kind: str
    """kind of the layer in the graph, such as convolution"""
    otherwise: Layer | None = None
    """the layer without the operators in front of it"""
    inner: tuple[Layer, ...] = ()
    """layers among the operators in front of it"""
    elsewhere: tuple[Fused, ...] = ()
    """the same layer in the other examples, where the same operators surround it"""

    @property
    def is_linear(self) -> bool:
        """Whether the layer is a linear layer, which a kernel computes as a 1x1 convolution."""
        return isinstance(self.module, LinearLayer)

    @property
    def ways(self) -> tuple[Layer, ...]:
        """The layer with all operators in front of it that kernels may compute, followed by the layer without them."""
        return (self,) if self.otherwise is None else (self, *self.otherwise.ways)

    @property
    def residual(self) -> bool:
        """Whether the network adds a tensor of the same shape to the output."""
        return self.fused is not None and self.fused.addition is not None

    @property
    def activation(self) -> str:
        """The word of the activation after the layer, or "" if there is none."""
        return "" if self.fused is None else self.fused.activation

    @property
    def problems(self) -> tuple[LayerProblem, ...]:
        """The problems that a kernel may compute instead of the layer, the most complete one first."""
        return () if self.fused is None else self.fused.problems

    def elsewhere_of(self, problem: LayerProblem) -> tuple[LayerProblem, ...]:
        """Return the other examples' problems that correspond to one of `problems`.

        Problems that equal `problem` or have other arguments are left out.
        """
        at = self.problems.index(problem)
        found = dict.fromkeys(each.problems[at] for each in self.elsewhere)
        return tuple(each for each in found if each != problem and each.arguments == problem.arguments)


@dataclass(slots=True)
class Inference:
    """A copy of a network, and the graphs captured from it."""

    network: nn.Module
    arguments: tuple[object, ...]
    parts: tuple[LayerGraph, ...]
    others: tuple[tuple[object, ...], ...] = ()
    """the arguments of other examples"""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All captured layers, in execution order."""
        return tuple(layer for part in self.parts for layer in part.layers)

    @property
    def folded(self) -> tuple[str, ...]:
        """The convolutions into which batch norms were folded, by name, once for each batch norm."""
        return tuple(name for part in self.parts for name in part.folded)

    def finish(self) -> nn.Module:
        """Put the changed parts into the network and return it."""
        for part in self.parts:
            self.network = replaced(self.network, part.part.graph, part.finished())
        return self.network


def read_network(module: nn.Module, example: object, expected: Callable[[Inference], None] | None = None) -> Inference:
    """Capture a copy of a network on an example, fold its batch norms and find its layers.

    `example_arguments` describes valid examples. With a list of examples, the first one is captured; the others may
    have other sizes. None of the copy's parameters requires gradients or is an inference tensor. `expected` is called
    early with a sketch, which nearly always contains the same layers. Raises TrainingMode if a part of the network is
    in training mode, and ValueError if the captured network can't run on another example.
    """
    refuse_training(module)
    with torch.inference_mode(mode=False), torch.no_grad():
        network = copy.deepcopy(module).requires_grad_(requires_grad=False)
        arguments, *others = (example_arguments(network, each) for each in examples_of(example))

        def sketched(parts: Sequence[Part]) -> None:
            if expected is not None:
                expected(Inference(network, arguments, tuple(map(LayerGraph, parts))))

        with fast_attention(network):
            network, parts = capture(network, arguments, None if expected is None else sketched)
        given = [given_to(network, each, [part.graph for part in parts]) for each in others]
        graphs = (LayerGraph(part, [each[part.graph] for each in given if part.graph in each]) for part in parts)
        return Inference(network, arguments, tuple(graphs), tuple(others))


class LayerGraph:
    """A captured part of a network with folded batch norms. Kernels can replace its operators."""

    def __init__(self, part: Part, others: Sequence[tuple[object, ...]] = ()) -> None:
        """Read the part. `others` are its arguments in other examples."""
        self.part = part
        self.baked: list[Tensor] = []
        """the network's own tensors that convolutions' filters and biases are computed from"""
        self.folded: list[str] = []
        """names of convolutions, once for each batch norm that was folded into them"""
        self._read = read(part)
        self._values: dict[fx.Node, Tensor] = {}
        self._writers = {node.name: node for node in part.graph.graph.nodes}
        """nodes that produce the tensors, by the tensors' names, including tensors whose original node was replaced"""
        self._views: list[fx.Node] = []
        """views of rows as images and of images as rows, in the order of the graph"""
        self._images_of: dict[fx.Node, fx.Node] = {}
        """rows that are a view of a kernel's images -> the node of these images"""
        served = _served(self._read)
        self._elsewhere = [_served(read(replace(part, arguments=each))) for each in others]
        self._found: dict[int, Layer] = {}
        folded = {each for fused in served.values() for each in fused.folded}
        for at, each in enumerate(self._read.graph.operators):
            if each.layer is not None and at not in folded:
                self._found[at] = self._layer(at, each.layer, served.get(at))
        part.graph.recompile()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the part, in execution order."""
        return tuple(self._found.values())

    def take(self, layer: Layer, problem: LayerProblem, tuned: nn.Module) -> None:
        """Replace a layer and the operators fused into `problem` with the module `tuned`, which runs a kernel."""
        fused, nodes, at = layer.fused, self.part.graph.graph, layer.node
        assert fused is not None  # noqa: S101 - a kernel computes the layer
        gone, before = [at], []
        if fused.front is not None:
            gone = [*self._nodes(fused.front.operators), at]
            first, *before = map(self._made, fused.front.reads)
            given = [first]
        elif isinstance(problem, Problem):
            given = [arguments_of(at)["input"]]
        else:
            given = [self._made(name) for name in self._read.graph.operators[fused.at].reads]
        moved = []
        if fused.moved is not None and (problem.has_residual or problem.activation):
            moved = self._nodes((fused.moved,))
            gone += moved
        if fused.addition is not None and problem.has_residual:
            at = self._read.nodes[fused.addition]
            gone += self._nodes(fused.copied)
            given.append(next(each for each in at.all_input_nodes if each not in gone))
            gone.append(at)
        if not isinstance(problem, Problem):
            gone += self._nodes(fused.folded)
        elif fused.shuffle is not None:
            gone += self._nodes(fused.shuffle.operators)
        if problem.activation:
            gone += self._nodes(fused.activated)
        if before:  # they follow the residual
            given = [*given, *[None] * (2 - len(given)), *before]
        with nodes.inserting_before(at):
            if layer.is_linear:
                x, *z = given
                given = [self._images(x, layer), *(z if moved else [self._images(each, layer) for each in z])]
            joined = isinstance(layer.module, JoinedConvolution)
            if joined:
                given = [None if each is None else self._view(_UNSQUEEZE, each, 2) for each in given]
            made = nodes.call_module(self._placed(layer, tuned), tuple(given))
            if layer.is_linear and not moved:
                made = self._rows(made, layer)
            elif joined:
                made = self._view(_SQUEEZE, made, 2)
        gone = sorted({*gone}, key=self._read.seen.order.__getitem__)
        self._replace(gone[-1], made)
        _erase(gone)

    def finished(self) -> nn.Module:
        """Return the changed part. If it was a single convolution, return the module that replaced it."""
        network, nodes = self.part.graph, self.part.graph.graph
        for node in reversed(self._views):
            if not node.users:
                nodes.erase_node(node)
        for node in nodes.find_nodes(op="get_attr"):
            if not node.users:
                nodes.erase_node(node)
        network.delete_all_unused_submodules()
        read = {str(node.target) for node in nodes.find_nodes(op="get_attr")}
        for name in [*network._parameters, *network._buffers]:
            if name not in read:
                delattr(network, name)
        network.recompile()
        calls = [node for node in nodes.nodes if node.op not in ("placeholder", "output")]
        if self.part.is_convolution and [node.op for node in calls] == ["call_module"]:
            return network.get_submodule(str(calls[0].target))
        return network

    def _images(self, rows: fx.Node, layer: Layer) -> fx.Node:
        """View a linear layer's rows [N, H, W, C] or [N, T, C] as channels-last images [N, C, H, W]."""
        if rows in self._images_of:
            return self._images_of[rows]
        if self._rank(layer) == 3:
            rows = self._view(_UNSQUEEZE, rows, 1)
        return self._view(_PERMUTE, rows, (0, 3, 1, 2))

    def _rows(self, images: fx.Node, layer: Layer) -> fx.Node:
        """View images [N, C, H, W] as a linear layer's rows [N, H, W, C] or [N, T, C]."""
        rows = self._view(_PERMUTE, images, (0, 2, 3, 1))
        if self._rank(layer) == 3:
            rows = self._view(_SQUEEZE, rows, 1)
        self._images_of[rows] = images
        return rows

    def _rank(self, layer: Layer) -> int:
        """Return the number of dimensions of a layer's output."""
        return len(self._read.seen.tensors[layer.node].kind.shape)

    def _view(self, operator: torch._ops.OpOverload, *arguments: object) -> fx.Node:
        node = self.part.graph.graph.call_function(operator, arguments)
        self._views.append(node)
        return node

    def _made(self, name: str) -> fx.Node:
        """Return the node that currently produces one of the captured graph's tensors."""
        return self._writers[name]

    def _replace(self, node: fx.Node, other: fx.Node) -> None:
        """Make another node produce a node's tensor."""
        node.replace_all_uses_with(other)
        self._writers |= {name: other for name, writer in self._writers.items() if writer is node}

    def _nodes(self, positions: tuple[int, ...]) -> list[fx.Node]:
        return [self._read.nodes[at] for at in positions]

    def _layer(self, at: int, found: network_layers.Layer[LayerProblem], fused: Fused | None) -> Layer:
        node, problem = self._read.nodes[at], found.problem
        name = self.part.layer_name(found.label)
        why_not = found.why_not if changes_are_counted(self.part.graph) else NOT_COUNTED
        layer = Layer(name, None, None, why_not, None, node, found.kind)
        if fused is None or problem is None or why_not:
            return layer
        found_elsewhere = (each.get(at) for each in self._elsewhere)
        layer = replace(layer, elsewhere=tuple(each for each in found_elsewhere if each and _alike(each, fused)))
        if isinstance(problem, Problem):
            if fused.shuffle is not None:
                before = self._layer(at, found, replace(fused, shuffle=None, activation="", activated=()))
                assert isinstance(before.module, Convolution)  # noqa: S101 - of a convolution
                problem = replace(fused.shuffle.problem, epilogue=fused.problems[0].epilogue)
                module = ShuffledConvolution(problem, before.module.weight, before.module.bias)
                fused = replace(fused, front=None)
                return replace(before, module=module, problem=problem, fused=fused, otherwise=before, inner=())
            conv = self._convolution(node, name, problem, fused, is_linear=found.is_linear)
            without = tuple(replace(each, front=None) for each in layer.elsewhere)
            alone = replace(
                layer, module=conv, problem=conv.problem, fused=replace(fused, front=None), elsewhere=without
            )
            return alone if fused.front is None else self._with_front(alone, conv, fused.front, fused, layer.elsewhere)
        if node not in self._read.seen.tensors:
            return replace(layer, why_not="its statistics are outputs, too")
        weights = self._weights(node)
        written_out = fused.front is not None or fused.folded or isinstance(problem, BatchNormProblem)
        if isinstance(problem, (NormProblem, ConcatProblem)) and written_out:
            weights = self._factors(node, problem, fused)
        weight, bias = (None if each is None else _parameter(each.flatten()) for each in weights)
        module = MODULES[type(problem)](problem, weight, bias, self._read.seen.tensors[node].kind.device)
        return replace(layer, module=module, problem=problem, fused=fused)

    def _with_front(
        self, layer: Layer, conv: Convolution, front: Front, fused: Fused, elsewhere: tuple[Fused, ...]
    ) -> Layer:
        """Return a layer with the operators in front of it.

        The layer is returned unchanged if a tensor that the kernel would read is overwritten before it runs, or if
        rounding would make a batch norm inaccurate.
        """
        reads = tuple(map(self._made, front.reads))
        last = layer.node if fused.addition is None else self._read.nodes[fused.addition]
        if self._read.seen.overwritten(reads, self._read.nodes[front.operators[0]], last):
            return layer
        problem, *_ = fronts = [_problem_in_front(each, conv.problem.epilogue) for each in (fused, *elsewhere)]
        kind = Convolution
        if problem.geometry.transposed and not conv.problem.geometry.transposed:
            kind = UpsampledConvolution
        elif len(problem.geometry.w) > len(conv.problem.geometry.w):
            kind = JoinedConvolution
        factors, deviations = self._factors_in_front(front, problem)
        if deviations > _MOST_DEVIATIONS and problem.dtype != "f32":
            return layer
        module = kind(problem, conv.weight, conv.bias, factors)
        fused, *elsewhere_with = (
            replace(each, front=replace(front, problem=of))
            for each, of in zip((fused, *elsewhere), fronts, strict=True)
        )
        inner = tuple(self._found[at] for at in front.operators if at in self._found)
        found = replace(layer, module=module, problem=problem, fused=fused, otherwise=layer, inner=inner)
        return replace(found, elsewhere=tuple(elsewhere_with))

    def _factors(self, node: fx.Node, problem: NormProblem | ConcatProblem, fused: Fused) -> tuple[Tensor, Tensor]:
        """Return a batch norm's scale and shift, or those after a concatenation or a written-out norm, as weight and
        bias.
        """
        chain = self._nodes(fused.folded)
        if isinstance(problem, BatchNormProblem):
            chain, node = [node, *chain], self._made(self._read.graph.operators[fused.at].reads[0])
        scale, shift = self._scale_and_shift(node, chain, problem)
        if isinstance(problem, ConcatProblem):
            return scale.float(), shift.float()
        dtype = STORED[problem.dtype]
        return (scale * problem.channels**-0.5).to(dtype), shift.to(dtype)

    def _factors_in_front(self, front: Front, problem: Problem) -> tuple[Tensor | None, float]:
        """Return the scale and shift [2, N, C] of the batch norm in front of a convolution, and its largest mean.

        The mean is the largest of all channels, in standard deviations. Without a batch norm, the result is (None, 0).
        """
        if not problem.prologue.startswith("scale_shift"):
            return None, 0.0
        norm, read = self._read.nodes[front.operators[0]], self._made(front.reads[0])
        scale, shift = self._scale_and_shift(read, [norm], problem)
        weight, bias = (each if each is None else each.double() for each in self._weights(norm))
        means = (shift if bias is None else shift - bias) / (1.0 if weight is None else weight)
        factors = torch.stack((scale, shift)).to(STORED[problem.dtype])
        repeated = factors[:, None].expand(-1, problem.x[0] or 0, -1).contiguous()
        return repeated, float(means.nan_to_num(nan=0.0).abs().max())  # a weight of 0 gives 0 / 0

    def _scale_and_shift(self, node: fx.Node, chain: list[fx.Node], problem: LayerProblem) -> tuple[Tensor, Tensor]:
        """Return the scale and shift [C] computed by operators after a node, for a problem whose images have C
        channels.
        """
        device = self._read.seen.tensors[node].kind.device
        y = torch.empty((1, problem.x[1] or 0, *(1,) * (len(problem.x) - 2)), device=device)
        return scale_and_shift(node, chain, self._value, y)

    def _convolution(self, node: fx.Node, name: str, problem: Problem, fused: Fused, *, is_linear: bool) -> Convolution:
        """Return a convolution's or linear layer's module, with the scales and shifts after the layer folded
        into it.
        """
        weight, bias = self._weights(node)
        assert weight is not None  # noqa: S101 - a convolution has filters
        if fused.folded:
            chain = self._nodes(fused.folded)
            sizes = [1] * len(self._read.seen.tensors[node].kind.shape)
            sizes[-1 if is_linear else 1] = problem.geometry.k
            channels = torch.empty(sizes, device=weight.device)
            scale, shift = scale_and_shift(node, chain, self._value, channels)
            groups = problem.geometry.groups if problem.geometry.transposed else 0
            weight, bias = with_scale_and_shift(weight, bias, scale, shift, transposed_groups=groups)
            self._store(node, weight, bias)
            self.folded += [name for each in chain if "batch_norm" in str(each.target)]
            moved = next((each for each in chain if each.target is _PERMUTE), None)
            if moved is not None:
                moved.replace_input_with(moved.all_input_nodes[0], node)
            self._replace(chain[-1], moved or node)
            _erase([each for each in chain if each is not moved])
            problem = replace(problem, epilogue="bias")
        weight, bias = _parameter(weight), None if bias is None else _parameter(bias)
        if is_linear:
            return LinearLayer(problem, _parameter(weight[:, :, None, None]), bias)
        return Convolution(problem, weight, bias)

    def _weights(self, node: fx.Node) -> tuple[Tensor | None, Tensor | None]:
        """Return a layer's weight and bias."""
        given = (arguments_of(node).get(name) for name in ("weight", "bias"))
        weight, bias = (self._value(each) if isinstance(each, fx.Node) else None for each in given)
        return weight, bias

    def _value(self, node: fx.Node) -> Tensor:
        """Compute the value of a node that depends on nothing but the network's own tensors."""
        if node not in self._values:
            if node.op == "get_attr":
                value = attribute(self.part.graph, str(node.target))
                self.baked.append(value)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._value)
                value = node.target(*args, **kwargs)
            self._values[node] = value
        return self._values[node]

    def _store(self, node: fx.Node, weight: Tensor, bias: Tensor) -> None:
        """Replace a convolution's parameters in the graph. The new ones keep the old names if possible."""
        network, nodes, given = self.part.graph, self.part.graph.graph, arguments_of(node)
        before = {name: given.get(name) for name in ("weight", "bias")}
        at = before["weight"]
        known = str(at.target) if isinstance(at, fx.Node) and at.op == "get_attr" else f"{node.name}.weight"
        owner = known.rpartition(".")[0]
        for name, tensor in (("weight", weight), ("bias", bias)):
            old = before[name]
            own = str(old.target) if isinstance(old, fx.Node) and old.op == "get_attr" else f"{owner}.{name}".strip(".")
            if own != known and not isinstance(old, fx.Node) and not _is_free(network, own, ()):
                own = f"{node.name}_{name}"
            _set_parameter(network, own, tensor)
            with nodes.inserting_before(node):
                given[name] = nodes.get_attr(own)
        node.args, node.kwargs = (given.pop("input"), given.pop("weight"), given.pop("bias")), given

    def _placed(self, layer: Layer, tuned: nn.Module) -> str:
        """Add a module at a free path, if possible at the path of the layer's parameters, and return the path."""
        network, label = self.part.graph, layer.name.removeprefix(f"{self.part.path}.") or layer.node.name
        name, number = label, 1
        weights = self.part.graph.graph.find_nodes(op="get_attr", target=f"{label}.weight")
        shared = any(user is not layer.node for each in weights for user in each.users)
        reshaped = shared and attribute(network, f"{label}.weight").shape != tuned.weight.shape
        held = () if reshaped else ("weight", "bias")  # other nodes still read the weight as it is
        while not _is_free(network, name, held):
            number += 1
            name = f"{label}_{number}".replace(".", "_")
        network.add_submodule(name, tuned)
        return name


def _served(found: Read) -> dict[int, Fused]:
    """Return the layers that kernels may compute, with the surrounding operators, by position in the graph."""
    writers = {node.name: node for node in found.part.graph.graph.nodes}

    def may_add(at: int, tensor: str, by: int) -> bool:
        layer = found.graph.operators[at].layer
        conv, y, addition = found.nodes[at], writers[tensor], found.nodes[by]
        z = next((each for each in addition.all_input_nodes if each.name != tensor), None)
        if layer is None or layer.problem is None or z is None:
            return False
        return found.seen.may_add(conv, y, z, addition, None if layer.is_linear else layer.problem.layout)

    return {each.at: each for each in fuse(found.graph, may_add=may_add)}


def _problem_in_front(fused: Fused, epilogue: str) -> Problem:
    """Return the problem of a convolution and the operators in front of it, with this epilogue."""
    assert fused.front is not None  # noqa: S101 - it has some
    assert isinstance(fused.front.problem, Problem)  # noqa: S101 - that of a convolution
    return replace(fused.front.problem, epilogue=epilogue)


def _alike(one: Fused, other: Fused) -> bool:
    """Return whether a layer is surrounded by the same operators in two examples."""
    fronts = [each.front and each.front.operators for each in (one, other)]
    return fronts[0] == fronts[1] and replace(one, layer=other.layer, front=other.front) == other


def _parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)


def _set_parameter(network: nn.Module, path: str, tensor: Tensor) -> None:
    """Set a parameter at a path, creating any missing modules."""
    *owners, name = path.split(".")
    for each in owners:
        if not hasattr(network, each):
            network.add_module(each, nn.Module())
        network = getattr(network, each)
    if name in network._buffers:
        del network._buffers[name]
    network.register_parameter(name, _parameter(tensor))


def _is_free(network: nn.Module, path: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a module may be added at a path: it is free, or its module contains only the allowed
    parameters.
    """
    for name in path.split("."):
        if not hasattr(network, name):
            return True
        part = getattr(network, name)
        if not isinstance(part, nn.Module):
            return False
        network = part
    held = {*network._parameters, *network._buffers, *network._modules}
    return type(network) is nn.Module and held <= {*allowed}


def _erase(nodes: list[fx.Node]) -> None:
    """Remove nodes and the checks of their metadata, last to first. Nothing else may read them."""
    for node in reversed(nodes):
        for check in [each for each in node.users if each.target is _ASSERT]:
            node.graph.erase_node(check)
        node.graph.erase_node(node)
