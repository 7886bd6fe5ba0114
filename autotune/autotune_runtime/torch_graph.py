"""Convert a captured PyTorch network to the graph used for matching kernels, from its calls and a run on its
example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef

from .aten import Calls
from .aten_calls import Argument, Call, Ref, TensorType
from .fusion import Graph
from .plain_problems import MOST_TENSORS
from .torch_call import DTYPES, LAST
from .torch_capture import Part
from .torch_example import undisturbed

_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar, torch.ops.aten.div.Tensor, torch.ops.aten.div.Scalar)
_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "dropout")
"""Prefixes of operators whose results differ from call to call."""


@dataclass(frozen=True, slots=True)
class Read:
    """A captured part that has been run and converted to a graph."""

    part: Part
    graph: Graph
    nodes: tuple[fx.Node, ...]
    """nodes of the captured graph, by the positions of the operators in `graph`"""
    seen: Seen


def read(part: Part) -> Read:
    """Run a captured graph on its example, and convert it."""
    calls, seen = calls_of(part)
    graph, nodes = calls.graph(), part.graph.graph
    (output,) = nodes.find_nodes(op="output")
    by_name = {node.name: node for node in nodes.nodes}
    return Read(
        part, graph, tuple(by_name[each.writes[0]] if each.writes else output for each in graph.operators), seen
    )


def calls_of(part: Part) -> tuple[Calls, Seen]:
    """Return a captured graph's calls, and what was observed when it ran on its example. The graph is changed."""
    follow_writers(part.graph.graph)
    seen = Seen(part.graph)
    seen.observe(part.arguments)
    if _split_concatenations(part.graph.graph, seen):
        seen = Seen(part.graph)
        seen.observe(part.arguments)
    _without_products_by_one(part.graph.graph, seen)
    nodes = part.graph.graph.nodes
    labels = {node.name: part.labels.get(str(node.target), str(node.target)) for node in nodes if node.op == "get_attr"}
    (output,) = part.graph.graph.find_nodes(op="output")
    calls = Calls(
        calls=tuple(_call(node, seen) for node in nodes if node.op.startswith("call")),
        tensors={
            node.name: TensorType(tuple(each.kind.shape), _word(each), each.layouts)
            for node, each in seen.tensors.items()
        },
        images=tuple(node.name for node in nodes if node.op == "placeholder"),
        constants=labels,
        outputs=frozenset(node.name for node in output.all_input_nodes),
    )
    return calls, seen


def _word(tensor: TensorIs) -> str:
    return DTYPES.get(tensor.kind.dtype, str(tensor.kind.dtype))


def _call(node: fx.Node, seen: Seen) -> Call:
    writes = (node.name,) if seen.storages[node] else ()
    if not isinstance(node.target, torch._ops.OpOverload):
        return Call("", _named(node, seen), writes)
    schema = node.target._schema
    name = schema.name.removeprefix("aten::")
    return Call(
        name=name.removesuffix("_") if node.target.namespace == "aten" else "",
        in_place=schema.is_mutable and name.endswith("_"),
        arguments={name: _argument(value, seen) for name, value in arguments_of(node).items()},
        writes=writes,
        varies=name.startswith(_RANDOM) or (bool(node.all_input_nodes) and not _reads_tensors(node, seen)),
    )


def arguments_of(node: fx.Node) -> dict[str, object]:
    """Return a node's arguments, keyed by their names in the operator's schema."""
    names = [each.name for each in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _joined_by(cat: fx.Node) -> list[fx.Node]:
    """Return the nodes of the tensors joined by a concatenation."""
    given = arguments_of(cat)["tensors"]
    return [each for each in given if isinstance(each, fx.Node)] if isinstance(given, (list, tuple)) else []


def attribute(network: nn.Module, path: str) -> Tensor:
    """Return the parameter or buffer at a path."""
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(network.get_submodule(owner), name)
    return found


def _reads_tensors(node: fx.Node, seen: Seen) -> bool:
    return any(seen.storages[each] for each in node.all_input_nodes)


def _named(node: fx.Node, seen: Seen) -> dict[str, Argument]:
    return {each.name: Ref(each.name) for each in node.all_input_nodes if seen.storages[each]}


def _argument(value: object, seen: Seen) -> Argument:
    """Convert an argument. A size computed by the network becomes None."""
    if isinstance(value, fx.Node):
        return Ref(value.name) if seen.storages[value] else None
    if isinstance(value, (list, tuple)):
        return [_argument(each, seen) for each in value]
    return value if isinstance(value, (str, int, float)) else None


def follow_writers(graph: fx.Graph) -> None:
    """Make operators after an in-place write read the tensor that the write returned."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable and node.args:
            tensor = node.args[0]
            for user in [*tensor.users] if isinstance(tensor, fx.Node) else []:
                if order[user] > order[node]:
                    user.replace_input_with(tensor, node)


def _without_products_by_one(graph: fx.Graph, seen: Seen) -> None:
    """Remove products and quotients that just return their input, such as an output's scale of 1."""
    for node in [*graph.nodes]:
        if node.target not in _PRODUCTS or len(node.args) != 2 or node.args[1] != 1:
            continue
        x = node.args[0]
        made_here = isinstance(x, fx.Node) and x.op == "call_function" and seen.tensors.get(x) == seen.tensors.get(node)
        if isinstance(x, fx.Node) and made_here and not seen.overwritten((x, node), node, None):
            node.replace_all_uses_with(x)
            graph.erase_node(node)


def _split_concatenations(graph: fx.Graph, seen: Seen) -> bool:
    """Split concatenations of more tensors than a kernel can read, so that the first ones are concatenated separately.

    Concatenations with the same first tensors share that part. Returns whether the graph changed.
    """
    parts: dict[tuple[fx.Node, ...], tuple[fx.Node, fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        tensors = _joined_by(node)
        if len(tensors) <= MOST_TENSORS or node.args[1:] != (1,):
            continue
        while len(tensors) > MOST_TENSORS:
            first = tuple(tensors[:MOST_TENSORS])
            part, since = parts.get(first, (None, node))
            if part is None or seen.overwritten((each for each in first if each in seen.order), since, node):
                with graph.inserting_before(node):
                    part = graph.call_function(node.target, (first, 1))
                parts[first] = part, node
            tensors = [part, *tensors[MOST_TENSORS:]]
        node.args = (tensors, 1)
    return bool(parts)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The properties that two tensors must share for a kernel to add them."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class TensorIs:
    """A tensor's shape, dtype, device and layouts."""

    kind: _Kind
    layouts: frozenset[str]
    """layouts in which the tensor is contiguous; images of one pixel or one channel have both"""

    @classmethod
    def of(cls, tensor: Tensor) -> TensorIs:
        """Return the properties of a tensor."""
        formats = {"nchw": torch.contiguous_format}
        if tensor.dim() in LAST:
            formats["nhwc"] = LAST[tensor.dim()]
        layouts = frozenset(name for name, how in formats.items() if tensor.is_contiguous(memory_format=how))
        return cls(_Kind(tensor.shape, tensor.dtype, tensor.device), layouts)


class Seen(fx.Interpreter):
    """What was observed in one run of a graph: each node's output, its storages, and the storages that the node wrote.

    A storage is identified by a weak reference, which is unique even if the memory is reused.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.order = {node: at for at, node in enumerate(graph.graph.nodes)}
        self.tensors: dict[fx.Node, TensorIs] = {}
        self.storages: dict[fx.Node, frozenset[StorageWeakRef]] = {}
        self.written: dict[fx.Node, frozenset[StorageWeakRef]] = {}

    def observe(self, arguments: tuple[object, ...]) -> None:
        """Run the graph on copies of the arguments. Even if the caller is in inference mode, versions are counted."""
        with torch.inference_mode(mode=False), torch.no_grad(), undisturbed(self.module, arguments) as given:
            self.run(*given)

    def run_node(self, n: fx.Node) -> object:
        """Run a node, and record its output and the storages that it wrote."""
        before = [(tensor, _version(tensor)) for given in n.all_input_nodes for tensor in _tensors(self.env[given])]
        result = super().run_node(n)
        self.written[n] = frozenset(_storage(tensor) for tensor, version in before if _version(tensor) != version)
        self.storages[n] = frozenset(map(_storage, _tensors(result)))
        if isinstance(result, Tensor):
            self.tensors[n] = TensorIs.of(result)
        return result

    def may_add(self, conv: fx.Node, y: fx.Node, z: fx.Node, addition: fx.Node, layout: str | None) -> bool:
        """Return whether a kernel that runs instead of the addition y + z can compute both the convolution and the
        addition.

        `layout` is the kernel's; None stands for the layout of y.
        """
        y_is, z_is = self.tensors.get(y), self.tensors.get(z)
        if y_is is None or z_is is None or y_is.kind != z_is.kind:
            return False
        if z_is.layouts.isdisjoint(y_is.layouts if layout is None else {layout}):
            return False
        if self.overwritten(conv.all_input_nodes, conv, addition):
            return False
        return not self.written[addition] & self.storages[z] or not self._read_elsewhere(z, addition)

    def overwritten(self, tensors: Iterable[fx.Node], first: fx.Node, last: fx.Node | None) -> bool:
        """Return whether tensors were overwritten after the node `first` and before `last` (None: before the end)."""
        memory = frozenset[StorageWeakRef]().union(*(self.storages[each] for each in tensors))
        return any(self.written[each] & memory for each in self._between(first, last))

    def _between(self, first: fx.Node, last: fx.Node | None) -> Iterator[fx.Node]:
        """Yield the nodes that ran after `first` and before `last` (None: before the end)."""
        end = len(self.order) if last is None else self.order[last]
        return (node for node, at in self.order.items() if self.order[first] < at < end)

    def _read_elsewhere(self, z: fx.Node, writer: fx.Node) -> bool:
        """Return whether a write by `writer` into z's memory is visible outside the writer's result.

        This is the case if z shares memory with an input, a parameter, or an earlier tensor that a later node reads.
        """
        memory = self.storages[z]
        outside = (node for node in self.order if node.op in ("placeholder", "get_attr"))
        later = (node for node, at in self.order.items() if at > self.order[writer])
        earlier = (each for node in later for each in node.all_input_nodes if self.order[each] < self.order[writer])
        return any(self.storages[node] & memory for node in (*outside, *earlier))


def _tensors(value: object) -> list[Tensor]:
    """Return the strided tensors in a node's value."""
    found: list[Tensor] = []

    def noted(part: object) -> object:
        if isinstance(part, Tensor) and part.layout == torch.strided:
            found.append(part)
        return part

    map_aggregate(value, noted)
    return found


def _version(tensor: Tensor) -> int:
    """Return a number that grows each time a tensor's memory is written.

    Inference tensors, which can't be written outside inference mode, have version 0.
    """
    return 0 if tensor.is_inference() else tensor._version


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
