"""Capture a PyTorch network as graphs of ATen operators, by `torch.export`, as in import-model, or from Dynamo.

If torch.export refuses a network as a whole, because its control flow depends on values, the largest parts that
torch.export accepts are captured.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map

from .torch_example import convolutions, copied, has_hooks, replaced, run, tensors_of
from .torch_repeated import Calls, Once, Repeated, Value
from .torch_whole_norms import WholeNorms, with_aten_norms

MOST_UNROLLED = 8
"""Times that a convolution of one graph runs."""
_MOST_KINDS = 8  # of calls of a part
_FEWEST = 2  # batch size of the capture, because PyTorch takes a size of 1 for a constant


@dataclass(frozen=True, slots=True)
class Part:
    """A captured graph of a part of a network, or of all of it."""

    path: str
    graph: fx.GraphModule
    arguments: tuple[object, ...]
    """the arguments of its only call"""
    labels: Mapping[str, str] = field(default_factory=dict)
    """parameters whose names in the graph differ from the model's, with the latter"""
    is_convolution: bool = False
    """whether the part was a single convolution"""

    def layer_name(self, label: str) -> str:
        """The name of one of its layers in the network."""
        return self.path if self.is_convolution else ".".join(filter(None, (self.path, label)))


def capture(
    network: nn.Module,
    arguments: tuple[object, ...],
    sketched: Callable[[Sequence[Part]], None] | None = None,
    *,
    most_unrolled: int = MOST_UNROLLED,
) -> tuple[nn.Module, tuple[Part, ...]]:
    """Replace the parts of the network that can be captured by graphs; return the network, which is changed, and the
    graphs.

    All of it becomes one graph if torch.export accepts it, unless a convolution runs more than `most_unrolled` times.
    Otherwise the largest parts whose parameters nobody else reads become graphs, and a part that ran several times
    becomes a graph for each kind of call. `sketched` is called with a sketch of the graph, or of the largest parts,
    which takes a fraction of torch.export's time.
    """
    runs = Counter[nn.Module]()
    sketch = None if sketched is None else _sketch(network, arguments, runs)
    if sketch is None:
        runs = _runs(network, arguments)
    if sketched is not None:
        sketched([sketch] if sketch is not None else _sketches(network, arguments, runs))
    if all(runs[part] <= most_unrolled for part in convolutions(network).values()):
        graph = exported(network, arguments)
        if graph is not None:
            return graph, (Part("", graph, arguments, is_convolution=isinstance(network, _ConvNd)),)
    return network, tuple(_parts(network, arguments, runs))


def _sketch(network: nn.Module, arguments: tuple[object, ...], runs: Counter[nn.Module]) -> Part | None:
    """The network's operators on fake tensors, which nearly always are those that torch.export finds, or None if this
    fails; counts how often each part runs.
    """

    def called(part: nn.Module, _: object, __: object) -> None:
        runs[part] += 1
        if isinstance(part, _ConvNd) and runs[part] > MOST_UNROLLED:
            raise RecursionError(part)

    try:
        with _quiet(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
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
    """Sketches of the largest parts that run once."""
    given = _given_once(network, arguments, runs)

    def made(path: str, part: nn.Module) -> list[Part]:
        sketch = _sketch(part, given[part], Counter()) if part in given else None
        return [] if sketch is None else [replace(sketch, path=path)]

    return [*_largest(network, made)]


def _named_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once for every name that it has."""
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


def _runs(network: nn.Module, arguments: tuple[object, ...]) -> Counter[nn.Module]:
    """How often each part runs on the example."""
    runs = Counter[nn.Module]()
    with _quiet(), _hooked(network.modules(), lambda part, _, __: runs.update([part])):
        run(network, arguments)
    return runs


@contextlib.contextmanager
def _hooked(parts: Iterable[nn.Module], called: Callable[..., None]) -> Iterator[None]:
    """Let a function see each call of parts: the part, its arguments by position, and by name."""
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
    """What a function makes of the children of a network that have convolutions, or of their own children if it makes
    nothing of them.
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
    """A part as a graph for each kind of its calls, and the graphs; None if there are many kinds, or one fails."""
    calls = Calls(_MOST_KINDS)
    with _hooked([part], calls):
        run(network, arguments)
    graphs: dict[Hashable, tuple[fx.GraphModule, Value]] = {}
    parts: list[Part] = []
    labels = {f"part.{name}": name for name, _ in (*part.named_parameters(), *part.named_buffers())}
    for kind, (value, tensors) in calls.found.items():
        once = Once(part, value)
        with _quiet(), torch.no_grad():
            program = None if len(calls.found) > _MOST_KINDS else _program(once, (tensors, None))
        if program is None or once.made.value is None:
            return None, []
        graphs[kind] = _module(program, {}), once.made.value
        parts.append(Part(path, graphs[kind][0], tensors, labels))
    return Repeated(part, graphs).eval(), parts


def given_to(
    network: nn.Module, arguments: tuple[object, ...], parts: Sequence[nn.Module]
) -> dict[nn.Module, tuple[object, ...]]:
    """The arguments of the parts that are called with tensors by position, also in lists; each part runs once."""
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
    """Whether the network computes the same with graphs in place of a part, also after changes of its parameters.

    If not, something besides the part's call reads them, or uses attributes that a graph does not have.
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


def exported(network: nn.Module, arguments: tuple[object, ...]) -> fx.GraphModule | None:
    """The network captured by torch.export for all sizes that it allows; None if it fails.

    Parts with hooks stay modules, so that their hooks run.
    """
    opaque = {name: part for name, part in network.named_modules() if has_hooks(part) and not [*part.children()]}
    if "" in opaque:
        return None
    gpus = {tensor.device for tensor in tensors_of(arguments) if tensor.is_cuda}
    with _quiet(), torch.no_grad(), torch.random.fork_rng(gpus):
        stand_in = copy.deepcopy(network) if opaque else network
        for name, part in opaque.items():
            stand_in.set_submodule(name, _Opaque(name, copy.deepcopy(part).to("meta")))
        program = _program(stand_in, (_enough(arguments), _any_sizes(arguments)), (arguments, None))
        return None if program is None else _module(program, opaque)


def _program(network: nn.Module, *attempts: tuple[tuple[object, ...], object]) -> torch.export.ExportedProgram | None:
    """The network captured with the first arguments and dynamic shapes that torch.export accepts, if any."""
    for arguments, shapes in attempts:
        try:
            with WholeNorms():
                # the network's reads of sizes are part of the graph then, and fail there for other sizes
                return torch.export.export(
                    network, arguments, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
                )
        except Exception as error:  # noqa: BLE001 - tracing runs the network's own code, which may raise anything
            if depends_on_values(error):
                break
    return None


def depends_on_values(error: BaseException | None) -> bool:
    """Whether torch.export failed at a value that only a run of the network knows."""
    while error is not None:
        if "DataDependent" in type(error).__name__ or "data-dependent" in str(error):
            return True
        error = error.__cause__
    return False


def _any_sizes(arguments: tuple[object, ...]) -> object:
    """torch.export's description of the arguments' sizes: each may vary, if the network allows it."""
    return tree_map(lambda each: (Dim.AUTO,) * each.dim() if isinstance(each, Tensor) else None, arguments)


def _enough(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments with two images instead of one."""
    tensors = [each for each in tensors_of(arguments) if each.dim()]
    if any(each.shape[0] != 1 for each in tensors):
        return arguments
    made: tuple[object, ...] = tree_map(
        lambda each: torch.cat([each] * _FEWEST) if isinstance(each, Tensor) and each.dim() else each, arguments
    )
    return made


class Sizes:
    """Rejects arguments whose sizes differ from the graph's. A forward pre-hook, which checks sizes only once."""

    def __init__(self, fixed: Mapping[int, Mapping[int, int]], asked: fx.GraphModule) -> None:
        self._fixed, self._asked = fixed, asked
        self._known: set[tuple[tuple[int, ...], ...]] = set()

    def __call__(self, _: nn.Module, inputs: tuple[object, ...]) -> None:
        """Raise ValueError for other sizes."""
        if torch.compiler.is_compiling():
            return
        tensors = tensors_of(inputs)
        sizes = tuple(tuple(each.shape) for each in tensors)
        if sizes in self._known:
            return
        wrong = [
            f"axis {axis} of argument {at} is {sizes[at][axis]}, not {size}"
            for at, axes in self._fixed.items()
            for axis, size in axes.items()
            if sizes[at][axis] != size
        ]
        try:
            self._asked(*tree_leaves(inputs))
        except RuntimeError as error:
            wrong.append(str(error).partition(" on node")[0])
        if wrong:
            raise ValueError(
                f"autotune_runtime: the network was captured for other sizes: {'; '.join(wrong)}; convert it with an "
                "example of these sizes"
            )
        self._known.add(sizes)


def _module(program: torch.export.ExportedProgram, opaque: Mapping[str, nn.Module]) -> fx.GraphModule:
    made = program.module(check_guards=False)
    for node in made.graph.find_nodes(op="call_function", target=OPAQUE):
        x, name = node.args
        node.op, node.target, node.args = "call_module", str(name), (x,)
        made.add_submodule(str(name), opaque[str(name)])
    with_aten_norms(made.graph)
    values = [node.meta["val"] for node in made.graph.find_nodes(op="placeholder")]
    tensors = [each for each in values if isinstance(each, Tensor)]
    fixed = {
        at: {axis: size for axis, size in enumerate(each.shape) if isinstance(size, int)}
        for at, each in enumerate(tensors)
    }
    for node in made.graph.nodes:
        modules = [*(node.meta.get("nn_module_stack") or {}).values()]
        node.meta.clear()  # fake tensors, which no copy of a network needs
        if modules:
            node.meta["path"] = modules[-1][0]
    asked = _asked(made.graph)
    made.graph._tracer_cls = None  # that of the capture, which unpickling would call without its arguments
    graph = fx.GraphModule(made, made.graph)
    graph.register_forward_pre_hook(Sizes(fixed, asked))
    return graph.eval()


def _asked(graph: fx.Graph) -> fx.GraphModule:
    """Move the network's checks of its arguments' sizes out of its graph, into one of their own."""
    of_sizes = {*graph.find_nodes(op="placeholder")}
    questions = []
    for node in graph.nodes:
        of_tensor = isinstance(node.target, torch._ops.OpOverload) and node.target not in (SYM_SIZE, ASSERT)
        if node.op == "call_function" and not of_tensor and of_sizes.issuperset(node.all_input_nodes):
            of_sizes.add(node)
            questions += [node] if node.target is ASSERT else []
    apart = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in of_sizes:
            copies[node] = apart.node_copy(node, copies.__getitem__)
    apart.output(())
    for node in reversed([each for each in graph.nodes if each in of_sizes and each.op != "placeholder"]):
        if node in questions or not node.users:
            graph.erase_node(node)
    return fx.GraphModule(nn.Module(), apart)


class _Opaque(nn.Module):
    """Replaces a part with hooks during a capture."""

    def __init__(self, name: str, part: nn.Module) -> None:
        super().__init__()
        self.name = name
        _OPAQUE[name] = part.eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as PyTorch's own modules name it
        made: Tensor = OPAQUE(input, self.name)
        return made


_OPAQUE: dict[str, nn.Module] = {}
"""parts by name, on the meta device, which determine the shape of the output"""


_NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")  # that of this copy of the package


@torch.library.custom_op(f"{_NAMESPACE}::part", mutates_args=())
def _part(x: Tensor, name: str) -> Tensor:
    raise NotImplementedError(name)


@_part.register_fake
def _(x: Tensor, name: str) -> Tensor:
    y = _OPAQUE[name].forward(torch.empty(x.shape, dtype=x.dtype, device="meta"))
    return x.new_empty(y.shape)


SYM_SIZE, ASSERT = torch.ops.aten.sym_size.int, torch.ops.aten._assert_scalar.default
OPAQUE = getattr(torch.ops, _NAMESPACE).part.default


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PyTorch's warnings and logs during a capture, and the graph that it prints if the capture fails.

    torch.export reads cudnn.allow_tf32, which PyTorch refuses while convolutions have another precision than RNNs.
    """
    disabled = logging.root.manager.disable
    cudnn = torch.backends.cudnn
    precision = cudnn.conv.fp32_precision if hasattr(cudnn, "conv") else None
    differs = precision is not None and precision != cudnn.rnn.fp32_precision
    try:
        if differs:
            cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable()
            yield
    finally:
        logging.disable(disabled)
        if differs:
            cudnn.conv.fp32_precision = precision


@dataclass(slots=True)
class Lifted:
    """A network that takes some of a graph's inputs; parameters and buffers are its own."""

    part: Part
    taken: list[int]
    """positions of the inputs that are the network's parameters and buffers"""
    rest: list[int]
    """positions of the inputs that are passed in a call"""


def lifted(graph: fx.GraphModule, inputs: Sequence[object]) -> Lifted:
    """Dynamo's captured graph in ATen's operators, with the parameters and buffers among its inputs as attributes."""
    originals = graph.graph.find_nodes(op="placeholder")
    network = _in_aten(graph, [node.meta["example_value"] for node in originals])
    nodes = network.graph
    placeholders = nodes.find_nodes(op="placeholder")
    made = Lifted(Part("", network, ()), [], [])
    network.meta["dynamo_compile_id"] = graph.meta.get("dynamo_compile_id")  # otherwise CUDA graphs copy all parameters

    labels: dict[str, str] = {}
    body = next(node for node in nodes.nodes if node.op != "placeholder")
    for at, (node, original, value) in enumerate(zip(placeholders, originals, inputs, strict=True)):
        if not isinstance(value, Tensor) or not (original.meta.get("tensor_dict") or {}).get(
            "_dynamo_static_input_type"
        ):
            made.rest.append(at)
            continue
        made.taken.append(at)
        name = f"_{original.target}"
        if isinstance(value, nn.Parameter):
            network.register_parameter(name, value)
        else:
            network.register_buffer(name, value)
        labels[name] = label(original)
        with nodes.inserting_before(body):
            attribute = nodes.get_attr(name)
        node.replace_all_uses_with(attribute)
        nodes.erase_node(node)
    network.eval().recompile()
    with torch.inference_mode(mode=False), torch.no_grad():
        arguments = tuple(_example(inputs[at]) for at in made.rest)
    made.part = Part("", network, arguments, labels)
    return made


def _in_aten(graph: fx.GraphModule, fakes: Sequence[object]) -> fx.GraphModule:
    mode = next((each.fake_mode for each in fakes if isinstance(each, torch._subclasses.FakeTensor)), None)
    dispatcher = torch._dispatch.python.enable_python_dispatcher()  # for symbolic sizes
    with contextlib.nullcontext() if mode is None else mode, torch.no_grad(), dispatcher:
        made: fx.GraphModule = make_fx(graph, pre_dispatch=True)(*fakes)
    return made


def label(placeholder: fx.Node) -> str:
    """The name of a parameter in the model, from Dynamo's L['self']._modules['conv']._parameters['bias']; empty if it
    is not one.
    """
    source = getattr(placeholder, "_dynamo_source", None)
    name = "" if source is None else source.name
    text = str(name() if callable(name) else name)  # a method in older versions of PyTorch
    return ".".join(re.findall(r"(?:_modules|_parameters|_buffers)\['([^']+)'\]", text))


def _example(given: object) -> object:
    """An input for running a network: a symbol of Dynamo becomes the number that it currently stands for."""
    return given.node.hint if isinstance(given, torch.SymInt) else given
