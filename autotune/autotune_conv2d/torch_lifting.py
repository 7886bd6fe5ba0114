"""A graph that Dynamo captured as a network of modules: convolutions and batch norms with their parameters."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

_CONV2D = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_HARDTANH = ("input", "min_val", "max_val", "inplace")


@dataclass(slots=True)
class Lifted:
    """A network that takes some of a graph's inputs, those left; parameters and buffers are its own."""

    network: fx.GraphModule
    taken: list[int]
    """positions of the inputs that are parameters and buffers of the network's"""
    rest: list[int]
    """positions of those that it is called with"""
    compile_id: object
    """Dynamo's name for what is compiled"""
    paths: dict[int, str]
    """by id of a parameter or buffer: the path that its module had before Dynamo"""
    values: dict[fx.Node, Tensor] = field(default_factory=dict)
    """what the nodes are that read the network's own tensors"""
    convolutions: int = 0
    baked: list[Tensor] = field(default_factory=list)
    """what kernels have copies of: filters, biases, statistics"""

    def finish(self) -> None:
        """Remove attributes that nothing reads any more, and say that the others lie where they lie for good."""
        network = self.network
        for node in network.graph.find_nodes(op="get_attr"):
            if not node.users:
                network.graph.erase_node(node)
        read = {str(node.target) for node in network.graph.find_nodes(op="get_attr")}
        for name in [*network._parameters, *network._buffers]:
            if name not in read:
                delattr(network, name)
        network.recompile()
        network.meta["dynamo_compile_id"] = self.compile_id  # else CUDA graphs copy all parameters in every call


def lifted(graph: fx.GraphModule, inputs: Sequence[object]) -> Lifted:
    """The network of a graph, whose inputs hold parameters and buffers besides arguments; the graph itself is kept."""
    nodes = copy.deepcopy(graph.graph)
    network = fx.GraphModule(graph, nodes).eval()
    placeholders = nodes.find_nodes(op="placeholder")
    made = Lifted(network, [], [], graph.meta.get("dynamo_compile_id"), {})
    body = next(node for node in nodes.nodes if node.op != "placeholder")
    originals = graph.graph.find_nodes(op="placeholder")  # a copy does not know where Dynamo has them from
    for at, (node, original, value) in enumerate(zip(placeholders, originals, inputs, strict=True)):
        if not isinstance(value, Tensor) or not (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"):
            made.rest.append(at)
            continue
        made.taken.append(at)
        name = str(node.target)
        if isinstance(value, nn.Parameter):
            network.register_parameter(name, value)
        else:
            network.register_buffer(name, value)
        with nodes.inserting_before(body):
            attribute = nodes.get_attr(name)
        made.values[attribute] = value
        made.paths[id(value)] = _path(original)
        node.replace_all_uses_with(attribute)
        nodes.erase_node(node)
    for node in [*nodes.nodes]:
        if node.op == "call_function" and node.target in _MODULES:
            _MODULES[node.target](made, node)
    network.eval().recompile()
    return made


def _path(placeholder: fx.Node) -> str:
    """The path of the module whose parameter an input is, from Dynamo's L['self']._modules['conv']._parameters['bias'];
    empty where it is none's."""
    source = getattr(placeholder, "_dynamo_source", None)
    name = "" if source is None else source.name
    text = str(name() if callable(name) else name)  # a method in older versions of PyTorch
    return ".".join(re.findall(r"_modules\['([^']+)'\]", text))


def _given(made: Lifted, node: fx.Node, names: Sequence[str]) -> dict[str, object]:
    """A call's arguments by name, with the network's own tensors for the nodes that read them."""
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return {
        name: made.values.get(value, value) if isinstance(value, fx.Node) else value for name, value in given.items()
    }


def _conv2d(made: Lifted, node: fx.Node) -> None:
    given = _given(made, node, _CONV2D)
    x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    groups = given.get("groups", 1)
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None) or not isinstance(groups, int):
        return
    k, c = weight.shape[:2]
    conv = nn.Conv2d(c * groups, k, tuple(weight.shape[2:]), **given, bias=bias is not None, device="meta")
    _place(made, node, x, conv, {"weight": weight, "bias": bias})
    made.convolutions += 1


def _batch_norm(made: Lifted, node: fx.Node) -> None:
    given = _given(made, node, _BATCH_NORM)
    x = given["input"]
    statistics = {name: given.get(name) for name in _BATCH_NORM[1:3]}
    parameters = {name: given.get(name) for name in _BATCH_NORM[3:5]}
    known = all(isinstance(value, Tensor) for value in statistics.values())
    known = known and all(isinstance(value, Tensor | None) for value in parameters.values())
    shown = x.meta.get("example_value") if isinstance(x, fx.Node) else None
    eps = given.get("eps", 1e-5)
    if given.get("training", False) or not known or not isinstance(eps, float):
        return
    if not isinstance(shown, Tensor) or shown.dim() != 4:
        return
    norm = nn.BatchNorm2d(shown.shape[1], eps, affine=parameters["weight"] is not None, device="meta")
    _place(made, node, x, norm, {**statistics, **parameters})


def _relu6(made: Lifted, node: fx.Node) -> None:
    """Dynamo sees a ReLU6 as what PyTorch's module calls."""
    given = _given(made, node, _HARDTANH)
    if (given.get("min_val"), given.get("max_val")) == (0, 6):
        node.target, node.args = functional.relu6, (given["input"],)
        node.kwargs = {"inplace": given.get("inplace", False)}


def _place(made: Lifted, node: fx.Node, x: object, part: nn.Module, tensors: Mapping[str, object]) -> None:
    """Let a module with these tensors, the network's own, compute what a node does."""
    name = ""
    for key, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            name = name or made.paths[id(tensor)]
            own = isinstance(getattr(part, key), nn.Parameter) and not isinstance(tensor, nn.Parameter)
            setattr(part, key, nn.Parameter(tensor, requires_grad=False) if own else tensor)
            made.baked.append(tensor)
    if not name or not _is_free(made.network, name):
        name = node.name
    made.network.add_submodule(name, part)
    node.op, node.target, node.args, node.kwargs = "call_module", name, (x,), {}


def _is_free(network: nn.Module, path: str) -> bool:
    """Whether a module may be put there: all on the way are modules, and none is there."""
    for name in path.split("."):
        if not hasattr(network, name):
            return True
        part = getattr(network, name)
        if not isinstance(part, nn.Module):
            return False
        network = part
    return False


_MODULES: dict[object, Callable[[Lifted, fx.Node], None]] = {
    torch.conv2d: _conv2d,
    functional.batch_norm: _batch_norm,
    functional.hardtanh: _relu6,
}
