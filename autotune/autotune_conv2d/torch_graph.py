"""A network as a graph: which additions and activations a convolution's kernel can take with it, and taking them."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef

from .torch_activations import has_hooks, word_of_node
from .torch_example import Ran, run, tensors_of, undisturbed

_ADDITIONS: tuple[Callable[..., object], ...] = (operator.add, operator.iadd, torch.add)
_ADDING_METHODS = ("add", "add_")
_DROPOUTS = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, slots=True)
class Tail:
    """What a kernel can take behind a convolution's bias: an addition, then an activation, each the only reader."""

    addition: fx.Node | None = None
    """of a tensor as large, which is there when it is reached; only in a graph"""
    activation: str = ""
    """its word; empty: none"""
    activation_at: fx.Node | str | None = None
    """a node of the network's graph, or the path of a module"""


def traced(module: nn.Module, arguments: tuple[object, ...], expected: Ran) -> fx.GraphModule | None:
    """The network as a graph, where it has one that computes and writes the same on the example."""
    try:
        with undisturbed(module, arguments):
            for place in {torch.device("cpu"), *(tensor.device for tensor in tensors_of(arguments))}:
                torch.rand(1, device=place)  # a graph keeps what is drawn while tracing: it is to differ from a run's
            nodes = fx.Tracer().trace(module)  # what is computed of buffers alone is computed here
        for node in nodes.nodes:
            node.type = None  # an annotation, which may be a string that names nothing in the graph's own code
        graph = fx.GraphModule(module, nodes)
        made = run(graph, arguments)
        buffers = {**dict(module.named_buffers()), **made.buffers}  # a graph has those alone that it reads
        torch.testing.assert_close(made.outputs, expected.outputs, equal_nan=True)
        torch.testing.assert_close(made.arguments, expected.arguments, equal_nan=True)
        torch.testing.assert_close({name: buffers[name] for name in expected.buffers}, expected.buffers, equal_nan=True)
    except Exception:  # noqa: BLE001 - tracing runs the network's own code on stand-ins, which may raise anything
        return None
    return graph


def tails(graph: fx.GraphModule, arguments: tuple[object, ...], layouts: Mapping[str, str]) -> dict[str, Tail]:
    """What follows convolutions, by their paths; `layouts` has those that kernels may replace, and their layouts.

    Of two convolutions that meet in an addition the one that is computed last has it: the other's output is its
    residual. The graph is left so that later readers of a tensor that was written in place read it from the writer.
    """
    modules = dict(graph.named_modules())
    _bypass([node for node in graph.graph.nodes if _is_dropout(node, modules)])
    seen = _Seen(graph)
    seen.observe(arguments)
    _bypass([node for node in seen.unchanged if _told_not_to_train(node)])
    _follow_writers(seen)
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    convs = [
        node
        for node in graph.graph.nodes
        if node.op == "call_module" and str(node.target) in layouts and calls[str(node.target)] == 1
    ]
    taken: set[fx.Node] = set()
    found: dict[str, Tail] = {}
    for conv in reversed(convs):
        name = str(conv.target)
        addition = next(filter(_is_addition, _only_reader(conv)), None)
        if addition is not None and (addition in taken or not _addable(conv, addition, layouts[name], seen)):
            addition = None
        if addition is not None:
            taken.add(addition)
        reader = next(iter(_only_reader(addition or conv)), None)
        word = "" if reader is None else word_of_node(reader, modules)
        found[name] = Tail(addition, word, reader if word else None)
    return found


def take_addition(name: str, addition: fx.Node) -> None:
    """Let a convolution, called where the addition was, take the other operand as its argument z."""
    one, other = addition.all_input_nodes
    conv, z = (one, other) if (one.op, one.target) == ("call_module", name) else (other, one)
    addition.prepend(conv)
    conv.kwargs = {**conv.kwargs, "z": z}
    _bypass_node(addition, conv)


def take_activation(network: nn.Module, activation_at: fx.Node | str) -> None:
    """Let what is read be read as if it were the activation's output."""
    if isinstance(activation_at, str):
        network.set_submodule(activation_at, nn.Identity())
    else:
        _bypass_node(activation_at, activation_at.all_input_nodes[0])


def _bypass_node(node: fx.Node, instead: fx.Node) -> None:
    node.replace_all_uses_with(instead)
    node.graph.erase_node(node)


def _bypass(nodes: Iterable[fx.Node]) -> None:
    """Remove nodes that return their only input."""
    for node in nodes:
        _bypass_node(node, node.all_input_nodes[0])


def _only_reader(node: fx.Node) -> tuple[fx.Node, ...]:
    """The node that alone reads another's output, if there is one."""
    return tuple(node.users) if len(node.users) == 1 else ()


def _is_dropout(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a node does nothing in inference, by its kind."""
    if node.op != "call_module":
        return False
    part = modules[str(node.target)]
    return type(part) in _DROPOUTS and not has_hooks(part)


def _told_not_to_train(node: fx.Node) -> bool:
    """Whether a function got training=False, as of dropout: returning its input is what it does then, for any input."""
    if node.op != "call_function" or not inspect.isfunction(node.target) or len(node.all_input_nodes) != 1:
        return False
    return inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get("training") is False


def _is_addition(node: fx.Node) -> bool:
    """Whether a node adds two different nodes, neither scaled, and returns the sum."""
    adds = node.target in (_ADDITIONS if node.op == "call_function" else _ADDING_METHODS)
    if node.op == "call_module" or not adds or node.kwargs.get("alpha", 1) != 1:
        return False
    given = [*node.args, *(value for name, value in node.kwargs.items() if name != "alpha")]
    return (
        node.kwargs.keys() <= {"input", "other", "alpha"}
        and len(given) == len(node.all_input_nodes) == 2
        and all(isinstance(each, fx.Node) for each in given)
    )


def _addable(conv: fx.Node, addition: fx.Node, layout: str, seen: _Seen) -> bool:
    """Whether a kernel that is called where the addition is computes the same as convolution and addition do."""
    z = next(each for each in addition.all_input_nodes if each is not conv)
    y_is, z_is = seen.tensors.get(conv), seen.tensors.get(z)
    if y_is is None or z_is is None or y_is.kind != z_is.kind or layout not in z_is.layouts:
        return False
    images = frozenset[StorageWeakRef]().union(*(seen.storages[each] for each in conv.all_input_nodes))
    if any(seen.written[each] & images for each in seen.between(conv, addition)):
        return False  # the images are no longer what they were
    return not seen.written[addition] & seen.storages[z] or not seen.read_elsewhere(z, addition)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What two tensors must share that a kernel adds."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _TensorIs:
    kind: _Kind
    layouts: frozenset[str]
    """in which it is stored without gaps; images of one pixel or one channel in both"""

    @classmethod
    def of(cls, tensor: Tensor) -> _TensorIs:
        formats = {"nchw": torch.contiguous_format}
        if tensor.dim() == 4:
            formats["nhwc"] = torch.channels_last
        layouts = frozenset(name for name, how in formats.items() if tensor.is_contiguous(memory_format=how))
        return cls(_Kind(tensor.shape, tensor.dtype, tensor.device), layouts)


class _Seen(fx.Interpreter):
    """A graph that was run once: each node's output, the memory that it lies in, and the memory that was written.

    A storage is known by a weak reference, which is never another's, though memory is used again.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.order = {node: at for at, node in enumerate(graph.graph.nodes)}
        self.tensors: dict[fx.Node, _TensorIs] = {}
        self.storages: dict[fx.Node, frozenset[StorageWeakRef]] = {}
        self.written: dict[fx.Node, frozenset[StorageWeakRef]] = {}
        self.unchanged: dict[fx.Node, fx.Node] = {}
        """nodes that returned the very tensor that a node had given them"""

    def observe(self, arguments: tuple[object, ...]) -> None:
        """Run the graph on copies, whose versions are counted, whatever mode the caller is in."""
        with torch.inference_mode(mode=False), torch.no_grad(), undisturbed(self.module, arguments) as given:
            self.run(*given)

    def run_node(self, n: fx.Node) -> object:
        before = [(tensor, _version(tensor)) for given in n.all_input_nodes for tensor in _tensors(self.env[given])]
        result = super().run_node(n)
        self.written[n] = frozenset(_storage(tensor) for tensor, version in before if _version(tensor) != version)
        self.storages[n] = frozenset(map(_storage, _tensors(result)))
        if isinstance(result, Tensor):
            self.tensors[n] = _TensorIs.of(result)
            self.unchanged.update((n, given) for given in n.all_input_nodes if self.env[given] is result)
        return result

    def between(self, first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
        """The nodes that ran behind one and before another."""
        return (node for node, at in self.order.items() if self.order[first] < at < self.order[last])

    def read_elsewhere(self, z: fx.Node, writer: fx.Node) -> bool:
        """Whether anyone but through a writer's result sees what it wrote into z's memory: a caller, a later reader."""
        memory = self.storages[z]
        outside = (node for node in self.order if node.op in ("placeholder", "get_attr"))
        later = (node for node, at in self.order.items() if at > self.order[writer])
        earlier = (each for node in later for each in node.all_input_nodes if self.order[each] < self.order[writer])
        return any(self.storages[node] & memory for node in (*outside, *earlier))


def _tensors(value: object) -> list[Tensor]:
    """The tensors of a node's value."""
    found: list[Tensor] = []

    def noted(part: object) -> object:
        if isinstance(part, Tensor) and part.layout == torch.strided:
            found.append(part)
        return part

    map_aggregate(value, noted)
    return found


def _version(tensor: Tensor) -> int:
    """A number that grows when its memory is written; what inference mode made cannot be written outside of it."""
    return 0 if tensor.is_inference() else tensor._version


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _follow_writers(seen: _Seen) -> None:
    """Let who reads a tensor after it was written in place read it from the writer, which returned it.

    So `y.add_(z)` as a statement is in its readers' way as `y = y + z` is.
    """
    writers: dict[fx.Node, fx.Node] = {}
    for writer, tensor in seen.unchanged.items():
        if not seen.written[writer]:
            continue
        last = tensor
        while last in writers:
            last = writers[last]
        writers[last] = writer
        for user in [*last.users]:
            if seen.order[user] > seen.order[writer]:
                user.replace_input_with(last, writer)
