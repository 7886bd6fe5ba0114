"""Make kernels train the convolutions of a graph captured by Dynamo, and compute more of its backward pass."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from .activations import BY_WORD
from .convolution import Geometry, Problem
from .fusion import Graph, MatrixProduct, Operator
from .gradient_fusion import data_epilogues
from .interface import Library
from .torch_call import DTYPES, STORED
from .torch_dynamo import label
from .torch_gradients import TRAINED as OPERATOR
from .torch_gradients import TrainedLayer, after_activation, forked, trained_convolution
from .torch_training import DEFAULTS, PARTS, Site, TrainingReport, judged, number, site_of
from .torch_training_norms import RELUS, mask_gradient, normalized, rewrite_norms
from .torch_training_pools import rewrite_pools
from .untuned_build import UntunedBuild

_TENSORS = ("input", "weight", "bias")
_OF_CONVOLUTION = (*_TENSORS, "stride", "padding", "dilation", "groups")
_OF_TRANSPOSED = (*_TENSORS, "stride", "padding", "output_padding", "groups", "dilation")
_ARGUMENTS: Mapping[object, tuple[str, ...]] = {
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _OF_CONVOLUTION),
    **dict.fromkeys((torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), _OF_TRANSPOSED),
}
"""PyTorch's operators, with the names of their arguments."""
_ACTIVATIONS: Mapping[object, str] = {
    **dict.fromkeys(RELUS, "relu"),
    functional.silu: "silu",
    functional.gelu: "gelu",
}
"""Targets of nodes -> activations."""


class _TrainedCall(nn.Module):
    """A convolution of a graph, which takes the filters as an argument."""

    def __init__(self, layer: TrainedLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the output. For a masked layer, also return x for its other readers.

        If the layer computes the activation before it, x is the activation's input.
        """
        layer = self.layer
        run = forked if layer.parts.masked else after_activation if layer.parts.after else OPERATOR
        return trained_convolution(x, weight, bias, layer, layer.by_pytorch, run)


class _TrainedLinear(_TrainedCall):
    """A linear layer of a graph, whose rows [N, H, W, C] or [N, T, C] are viewed as channels-last images."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the output of the activation's input x."""
        images = (x if x.dim() == len("nhwc") else x.unsqueeze(1)).movedim(-1, 1)
        y = super().forward(images, weight[:, :, None, None], bias).movedim(1, -1)
        return y if x.dim() == len("nhwc") else y.squeeze(1)


def train_graph(
    graph: fx.GraphModule, libraries: Mapping[str, Library] | None, started: UntunedBuild | None, margin: float
) -> TrainingReport:
    """Make kernels compute the convolutions of a graph captured by Dynamo, which is changed."""
    rewrite_norms(graph)
    rewrite_pools(graph)
    epilogues = _epilogues(graph.graph)
    found: list[tuple[fx.Node, Site]] = []
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in _ARGUMENTS:
            given = _given(node)
            tensors = tuple(map(given.get, _TENSORS))
            values = [each.meta["example_value"] if isinstance(each, fx.Node) else None for each in (*tensors, node)]
            name = label(tensors[1]).removesuffix(".weight") or node.name
            arguments = {name: given.get(name, default) for name, default in DEFAULTS.items()}
            site = site_of(name, values, arguments, transposed=_ARGUMENTS[node.target] is _OF_TRANSPOSED)
            if site is not None:
                epilogue = epilogues.get(node, "none") if _may_fuse(site, values[0]) else "none"
                found.append((node, replace(site, epilogue=epilogue)))
        elif node.op == "call_function" and node.target is functional.linear and node in epilogues:
            site = _linear_site(node)
            if site is not None and _may_fuse(site, _first(node).meta["example_value"]):
                found.append((node, replace(site, epilogue=epilogues[node])))
    layers, report = judged([site for _, site in found], libraries, started, margin)
    for (node, _), layer in zip(found, layers, strict=True):
        if layer is not None:
            name, (x, *others) = f"trained_{node.name}", map(_given(node).get, _TENSORS)
            assert isinstance(x, fx.Node)  # noqa: S101 - as PyTorch declares
            graph.add_submodule(name, (_TrainedLinear if node.target is functional.linear else _TrainedCall)(layer))
            tensors = (_first(x) if layer.parts.after else x, *others)
            with graph.graph.inserting_before(node):
                made = graph.graph.call_module(name, tensors)
                if layer.parts.masked:
                    made = _forked(node, made)
            node.replace_all_uses_with(made)
            graph.graph.erase_node(node)
            if layer.parts.after:
                graph.graph.erase_node(x)
    graph.recompile()
    return report


def _forked(node: fx.Node, fork: fx.Node) -> fx.Node:
    """Return the output of a fork that replaces a convolution. Other readers of its input now read the fork's copy."""
    x = _given(node)["input"]
    assert isinstance(x, fx.Node)  # noqa: S101 - as PyTorch declares
    made, others = (node.graph.call_function(operator.getitem, (fork, at)) for at in (0, 1))
    x.replace_all_uses_with(others, lambda user: user not in (fork, node))
    mask_gradient(x)
    return made


def _may_fuse(site: Site, x: Tensor) -> bool:
    """Return whether the kernel of a layer's data gradient may also compute what follows it in the backward pass."""
    if site.problem.geometry.transposed:
        return False
    as_computed = x.dtype == STORED.get(site.problem.dtype) and all(isinstance(size, int) for size in x.shape[1:])
    return as_computed and len(site.wants) == len(PARTS) - 1


def _epilogues(graph: fx.Graph) -> dict[fx.Node, str]:
    """Return the epilogues of layers' data gradients."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    made = [(node, operator) for node in nodes for operator in _operators(node)]
    outputs = frozenset(node.name for node in graph.output_node().all_input_nodes)
    network = Graph(tuple(operator for _, operator in made), outputs)
    return {made[at][0]: epilogue for at, epilogue in data_epilogues(network).items()}


def _operators(node: fx.Node) -> Iterator[Operator]:
    """Yield the operators that a node computes, for `data_epilogues`. Only activations have a function."""
    reads, writes = tuple(each.name for each in node.all_input_nodes), (node.name,)
    if node.target in (*_ARGUMENTS, functional.linear):
        product = MatrixProduct(node.name, 0) if node.target is functional.linear else None
        yield Operator((_first(node).name,), writes, "convolution", product=product)
    elif node.target is normalized:
        x, residual, relu = (node.args[at] for at in (0, 7, 8))
        kinds = ["affine", *["addition"] * isinstance(residual, fx.Node), *["relu"] * (relu is True)]
        names = [str(x), *(f"{node.name}, {kind}" for kind in kinds[:-1]), node.name]
        for at, kind in enumerate(kinds):
            read = (names[at], str(residual)) if kind == "addition" else (names[at],)
            yield Operator(read, (names[at + 1],), kind, BY_WORD[kind] if kind == "relu" else None)
    else:
        word = "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else _ACTIVATIONS.get(node.target, "")
        yield Operator(reads, writes, function=BY_WORD.get(word))


def _given(node: fx.Node) -> dict[str, fx.node.Argument]:
    """Return the arguments of a convolution or linear layer in a graph by name."""
    return {**dict(zip(_ARGUMENTS.get(node.target, _TENSORS), node.args, strict=False)), **node.kwargs}


def _first(node: fx.Node) -> fx.Node:
    """Return the tensor that an activation or a layer reads."""
    tensor = node.args[0] if node.args else node.kwargs["input"]
    assert isinstance(tensor, fx.Node)  # noqa: S101 - as PyTorch declares
    return tensor


def _linear_site(node: fx.Node) -> Site | None:
    """Describe a linear layer, or return None if no kernel can compute its data gradient."""
    given = _given(node)
    x, weight, y = (each.meta["example_value"] for each in (given["input"], given["weight"], node))
    if x.dim() not in (3, 4):
        return None
    n, *spatial, c = map(number, x.shape)
    height, width = spatial if len(spatial) > 1 else (1, *spatial)
    k, dtype = weight.shape[0], DTYPES.get(y.dtype, str(y.dtype))
    shapes = ((n, c, height, width), (k, c, 1, 1), (n, k, height, width))
    geometry = Geometry(*shapes, (1, 1), (0, 0), (0, 0), (1, 1), 1, dtype=dtype, layout="nhwc")
    if geometry.why_not:
        return None
    parts = tuple(part for part, each in (("data", x), ("filters", weight)) if each.requires_grad)
    name = label(given["weight"]).removesuffix(".weight") or node.name
    return Site(name, Problem(geometry), given.get("bias") is not None, parts, weight.dtype, weight.device, linear=True)
