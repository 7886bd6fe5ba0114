"""Capture a PyTorch network as graphs of ATen operators with `torch.export`.

If torch.export rejects the whole network, for example because its control flow depends on values, `capture` captures
the largest parts that it accepts.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map

from .torch_example import convolutions, copied, has_hooked_leaf, replaced, run
from .torch_exported import collection_paused, exported, exported_program, graph_module, quiet
from .torch_repeated import Calls, Once, Repeated, Value

MOST_UNROLLED = 8
"""Maximum number of times that a convolution may run in one graph."""
_EXPORT = "torch.export._trace"  # which torch.export imports when it is first called
_MOST_KINDS = 8  # maximum number of different kinds of calls of one part


@dataclass(frozen=True, slots=True)
class Part:
    """A captured graph of a network or of one of its parts."""

    path: str
    graph: fx.GraphModule
    arguments: tuple[object, ...]
    """arguments of the graph's only call"""
    labels: Mapping[str, str] = field(default_factory=dict)
    """parameters' names in the graph -> their names in the model, where these differ"""
    is_convolution: bool = False
    """whether the part was a single convolution"""

    def layer_name(self, label: str) -> str:
        """Return the name of one of this part's layers in the network."""
        return self.path if self.is_convolution else ".".join(filter(None, (self.path, label)))


def capture(
    network: nn.Module,
    arguments: tuple[object, ...],
    sketched: Callable[[Sequence[Part]], None] | None = None,
    *,
    most_unrolled: int = MOST_UNROLLED,
) -> tuple[nn.Module, tuple[Part, ...]]:
    """Replace those parts of a network that can be captured by graphs, and return the changed network and the graphs.

    The whole network becomes one graph if torch.export accepts it and no convolution runs more than `most_unrolled`
    times. Otherwise, the largest parts whose parameters aren't read by any outside code become graphs. A part that runs
    many times becomes one graph for each kind of call. `sketched` is called early with sketches of the graph or of the
    largest parts, which take a fraction of torch.export's time.
    """
    runs = Counter[nn.Module]()
    sketch = None if sketched is None else _sketch(network, arguments, runs)
    if sketch is None:
        runs = _runs(network, arguments)
    if sketched is not None:
        sketched([sketch] if sketch is not None else _sketches(network, arguments, runs))
        _import_export(network, arguments)
    if all(runs[part] <= most_unrolled for part in convolutions(network).values()):
        graph = exported(network, arguments)
        if graph is not None:
            return graph, (Part("", graph, arguments, is_convolution=isinstance(network, _ConvNd)),)
    return network, tuple(_parts(network, arguments, runs))


def _import_export(network: nn.Module, arguments: tuple[object, ...]) -> None:
    """Import the modules of torch.export unless that has been done, and meanwhile run the network.

    The run makes cuDNN choose its algorithms, which takes about as long and doesn't need the interpreter.
    """
    if _EXPORT not in sys.modules:
        with ThreadPoolExecutor(1) as thread, quiet(), collection_paused():
            thread.submit(importlib.import_module, _EXPORT)
            run(network, arguments)


def _sketch(network: nn.Module, arguments: tuple[object, ...], runs: Counter[nn.Module]) -> Part | None:
    """Trace the network on fake tensors, which nearly always results in the same operators as torch.export.

    Returns None if tracing fails or a part without children has forward hooks. Counts the runs of each part in `runs`.
    """
    if has_hooked_leaf(network):
        return None

    def called(part: nn.Module, _: object, __: object) -> None:
        runs[part] += 1
        if isinstance(part, _ConvNd) and runs[part] > MOST_UNROLLED:
            raise RecursionError(part)

    try:
        with quiet(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            own = {name: mode.from_tensor(each) for name, each in _named_tensors(network)}
            paths = {id(tensor): name for name, tensor in own.items()}
            given = tree_map(lambda each: mode.from_tensor(each) if isinstance(each, Tensor) else each, arguments)

            def called_with(*of: object) -> object:
                return functional_call(network, own, of)

            with _hooked(network.modules(), called):
                graph: fx.GraphModule = make_fx(called_with, pre_dispatch=True)(*given)
            first: dict[str, fx.Node] = {}
            for node in graph.graph.find_nodes(op="get_attr"):
                if (same := first.setdefault(str(node.target), node)) is not node:
                    node.replace_all_uses_with(same)
                    graph.graph.erase_node(node)
            labels = {name: paths[id(value)] for name in first if id(value := getattr(graph, name)) in paths}
            return Part("", graph.eval(), given, labels, is_convolution=isinstance(network, _ConvNd))
    except Exception:  # noqa: BLE001 - tracing runs the network's own code, which may raise anything
        return None


def _sketches(network: nn.Module, arguments: tuple[object, ...], runs: Counter[nn.Module]) -> list[Part]:
    """Return sketches of the largest parts that run once."""
    given = _given_once(network, arguments, runs)

    def made(path: str, part: nn.Module) -> list[Part]:
        sketch = _sketch(part, given[part], Counter()) if part in given else None
        return [] if sketch is None else [replace(sketch, path=path)]

    return [*_largest(network, made)]


def _named_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers, once for each name that they have."""
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


def _runs(network: nn.Module, arguments: tuple[object, ...]) -> Counter[nn.Module]:
    """Count the runs of each part on the example."""
    runs = Counter[nn.Module]()
    with quiet(), _hooked(network.modules(), lambda part, _, __: runs.update([part])):
        run(network, arguments)
    return runs


@contextlib.contextmanager
def _hooked(parts: Iterable[nn.Module], called: Callable[..., None]) -> Iterator[None]:
    """Call a function before each call to these parts, with the part and its positional and keyword arguments."""
    hooks = [part.register_forward_pre_hook(called, with_kwargs=True) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parts(network: nn.Module, arguments: tuple[object, ...], runs: Counter[nn.Module]) -> Iterator[Part]:
    given = _given_once(network, arguments, runs)

    def made(path: str, part: nn.Module) -> list[Part]:
        if part in given:
            graph = exported(part, given[part])
            if graph is not None and _can_stand_for(network, arguments, part, graph, 1):
                replaced(network, part, graph)
                return [Part(path, graph, given[part], is_convolution=isinstance(part, _ConvNd))]
        if runs[part] > MOST_UNROLLED and not isinstance(part, _ConvNd):
            repeated, graphs = _repeated(network, arguments, part, path)
            if repeated is not None and _can_stand_for(network, arguments, part, repeated, runs[part]):
                replaced(network, part, repeated)
                return graphs
        return []

    return _largest(network, made)


def _given_once(
    network: nn.Module, arguments: tuple[object, ...], runs: Counter[nn.Module]
) -> dict[nn.Module, tuple[object, ...]]:
    return given_to(network, arguments, [part for part in network.modules() if runs[part] == 1])


def _largest(network: nn.Module, made: Callable[[str, nn.Module], list[Part]]) -> Iterator[Part]:
    """Apply `made` to the network's children that contain convolutions, and yield the resulting parts.

    If `made` returns nothing for a child, it is applied to that child's own children.
    """
    waiting = [name for name, _ in reversed([*network.named_children()])]
    while waiting:
        path = waiting.pop()
        part = network.get_submodule(path)
        found = made(path, part) if convolutions(part) else []
        yield from found
        if not found:
            waiting += [f"{path}.{name}" for name, _ in reversed([*part.named_children()])]


def _repeated(
    network: nn.Module, arguments: tuple[object, ...], part: nn.Module, path: str
) -> tuple[Repeated | None, list[Part]]:
    """Capture a part as one graph for each kind of call, and return a module that runs the graphs, and the graphs.

    The module is None if there are too many kinds of call or if a capture fails.
    """
    calls = Calls(_MOST_KINDS)
    with _hooked([part], calls):
        run(network, arguments)
    graphs: dict[Hashable, tuple[fx.GraphModule, Value]] = {}
    parts: list[Part] = []
    labels = {f"part.{name}": name for name, _ in (*part.named_parameters(), *part.named_buffers())}
    for kind, (value, tensors) in calls.found.items():
        once = Once(part, value)
        with quiet(), torch.no_grad():
            program = None if len(calls.found) > _MOST_KINDS else exported_program(once, (tensors, None))
        if program is None or once.made.value is None:
            return None, []
        graphs[kind] = graph_module(program), once.made.value
        parts.append(Part(path, graphs[kind][0], tensors, labels))
    return Repeated(part, graphs).eval(), parts


def given_to(
    network: nn.Module, arguments: tuple[object, ...], parts: Sequence[nn.Module]
) -> dict[nn.Module, tuple[object, ...]]:
    """Run the network and return the arguments of these parts, each of which must run once.

    Parts with keyword arguments, or with arguments other than (nested) tensors, are left out.
    """
    given: dict[nn.Module, tuple[object, ...]] = {}

    def called(part: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        leaves = tree_leaves(inputs)
        if leaves and not named and all(isinstance(each, Tensor) for each in leaves):
            given[part] = copied(inputs)

    with _hooked(parts, called):
        run(network, arguments)
    return given


def _can_stand_for(
    network: nn.Module, arguments: tuple[object, ...], part: nn.Module, graph: nn.Module, runs: int
) -> bool:
    """Return whether graphs can replace a part without changing the network's results, even if its parameters change
    later.

    They can't if code outside the part's calls reads its parameters, or uses attributes that a graph doesn't have.
    """

    calls = 0

    class Decoy(nn.Module):
        def forward(self, *given: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            return outputs(*given, **named)

    def outputs(*given: object, **named: object) -> object:
        return graph(*given, **named)

    decoy = Decoy().eval()
    for name, child in copy.deepcopy(graph).named_children():
        decoy.add_module(name, child)
    for parameter in decoy.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(torch.nan)
    expected = run(network, arguments).outputs
    replaced(network, part, decoy)
    try:
        torch.testing.assert_close(run(network, arguments).outputs, expected, equal_nan=True)
    except Exception:  # noqa: BLE001 - the network's own code, which may ask the decoy for anything
        return False
    finally:
        replaced(network, decoy, part)
    return calls == runs
