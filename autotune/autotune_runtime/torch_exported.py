"""Capture a PyTorch network, or a part of one, as a single graph of ATen operators with `torch.export`."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import logging
import operator
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx, nn
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_impls import get_fast_op_impls
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from .torch_example import has_hooked_leaf, tensors_of

_FEWEST = 2  # smallest batch size of a capture, because PyTorch treats a size of 1 as a constant
_GROUP_NORM = torch.ops.aten.native_group_norm.default
SYM_SIZE, ASSERT = torch.ops.aten.sym_size.int, torch.ops.aten._assert_scalar.default


def exported(network: nn.Module, arguments: tuple[object, ...]) -> fx.GraphModule | None:
    """Capture a network for all sizes that torch.export allows.

    Returns None if that fails, or if a part without children has forward hooks, which a graph wouldn't run.
    """
    if has_hooked_leaf(network):
        return None
    gpus = {tensor.device for tensor in tensors_of(arguments) if tensor.is_cuda}
    with quiet(), torch.no_grad(), torch.random.fork_rng(gpus):
        program = exported_program(network, (_enough(arguments), _any_sizes(arguments)), (arguments, None))
        return None if program is None else graph_module(program)


def exported_program(
    network: nn.Module, *attempts: tuple[tuple[object, ...], object]
) -> torch.export.ExportedProgram | None:
    """Capture a network with the first attempt (arguments and dynamic shapes) that torch.export accepts, or return
    None.
    """
    for arguments, shapes in attempts:
        try:
            # with deferred asserts, the network's checks of sizes become part of the graph and fail when it runs
            with collection_paused(), direct_norms():
                return torch.export.export(
                    network, arguments, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
                )
        except Exception as error:  # noqa: BLE001 - tracing runs the network's own code, which may raise anything
            if _depends_on_values(error):
                break
    return None


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's garbage collection, which otherwise takes a seventh of the time to import and use torch.export."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def direct_norms() -> Iterator[None]:
    """Make PyTorch compute the sizes of batch and group norms directly where sizes are symbolic.

    It would otherwise run their decompositions, which takes up to half of torch.export's time. PyTorch's cache of
    results is off inside the block: looking up symbolic sizes takes longer than computing them.
    """
    functions = get_fast_op_impls()
    before = {**functions}
    functions |= _DIRECT
    try:
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
            yield
    finally:
        functions.clear()
        functions |= before


def _group_norm(mode: FakeTensorMode, x: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor]:
    """Return fake tensors like a group norm of x [N, C, ...] and its statistics [N, groups]."""
    with mode:
        layout = suggest_memory_format(x)
        if layout == torch.contiguous_format and not x.is_contiguous():  # PyTorch's versions differ
            made: tuple[Tensor, Tensor, Tensor] = decomposition_table[_GROUP_NORM](x, *others)
            return made
        _, _, n, _, _, groups, _ = others
        mean = x.new_empty((n, groups))
        return torch.empty_like(x, memory_format=layout), mean, torch.empty_like(mean)


def _batch_norm(
    mode: FakeTensorMode, x: Tensor, _: object, __: object, mean: Tensor, *___: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Return fake tensors like a batch norm of x [N, C, ...] and its statistics [C], which are empty on the CPU."""
    with mode:
        wide = torch.promote_types(x.dtype, torch.float32)
        mean = x.new_empty(0) if x.device.type == "cpu" else torch.empty_like(mean, dtype=wide)
        return torch.empty_like(x), mean, torch.empty_like(mean)


_DIRECT = {
    _GROUP_NORM: _group_norm,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm,
}


def _depends_on_values(error: BaseException | None) -> bool:
    """Return whether torch.export failed because control flow depends on a value that is known only when the network
    runs.
    """
    while error is not None:
        if "DataDependent" in type(error).__name__ or "data-dependent" in str(error):
            return True
        error = error.__cause__
    return False


def _any_sizes(arguments: tuple[object, ...]) -> object:
    """Return dynamic shapes for torch.export that let every size vary, if the network allows it."""
    return tree_map(lambda each: (Dim.AUTO,) * each.dim() if isinstance(each, Tensor) else None, arguments)


def _enough(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return the arguments with two images instead of one. Arguments with several images are returned unchanged."""
    tensors = [each for each in tensors_of(arguments) if each.dim()]
    if any(each.shape[0] != 1 for each in tensors):
        return arguments
    made: tuple[object, ...] = tree_map(
        lambda each: torch.cat([each] * _FEWEST) if isinstance(each, Tensor) and each.dim() else each, arguments
    )
    return made


class Sizes:
    """A forward pre-hook that rejects arguments with sizes that a graph doesn't support. It checks each shape once."""

    def __init__(
        self,
        ranges: Sequence[Sequence[tuple[int, int | None]]],
        conditions: fx.GraphModule,
        expected: Sequence[tuple[bool, str]],
    ) -> None:
        """Check against `ranges`, the smallest and largest size of each tensor's axes, and with `conditions`.

        A largest size of None means that there is no limit. The graph `conditions` returns a truth value for each
        expected one, which comes with the words for the error.
        """
        self._ranges, self._expected = ranges, expected
        self._given, self._conditions = conditions, _with_builtins(conditions)
        self._known: set[tuple[tuple[int, ...], ...]] = set()

    def __reduce__(self) -> tuple[object, ...]:
        """Copy the graph as given, because a graph module is traced when it is read, and builtins cannot be traced."""
        return Sizes, (self._ranges, self._given, self._expected)

    def __call__(self, _: nn.Module, inputs: tuple[object, ...]) -> None:
        """Raise ValueError for sizes that the graph doesn't support."""
        compiles = torch.compiler.is_compiling()
        sizes = tuple(tuple(each.shape) for each in tensors_of(inputs))
        if not compiles and sizes in self._known:
            return
        wrong = [
            f"axis {axis} of argument {at} is {size}, not {_in_words(least, most)}"
            for at, (shape, ranges) in enumerate(zip(sizes, self._ranges, strict=True))
            for axis, (size, (least, most)) in enumerate(zip(shape, ranges, strict=True))
            if size < least or (most is not None and size > most)
        ]
        if self._expected:
            found = self._conditions(*tree_leaves(inputs))
            wrong += [
                words
                for (value, words), each in zip(self._expected, found, strict=True)
                if (not each if value else each)
            ]
        if wrong:
            raise ValueError(
                f"autotune_runtime: the network was captured for other sizes: {'; '.join(wrong)}; convert it with an "
                "example of these sizes"
            )
        if not compiles:
            self._known.add(sizes)


def graph_module(program: torch.export.ExportedProgram) -> fx.GraphModule:
    made = program.module(check_guards=False)
    values = [node.meta["val"] for node in made.graph.find_nodes(op="placeholder")]
    ranges = [[_range(size, program) for size in each.shape] for each in values if isinstance(each, Tensor)]
    for node in made.graph.nodes:
        modules = [*(node.meta.get("nn_module_stack") or {}).values()]
        node.meta.clear()  # drop fake tensors, which no copy of a network needs
        if modules:
            node.meta["path"] = modules[-1][0]
    conditions, expected = _conditions(made.graph)
    made.graph._tracer_cls = None  # unpickling would call the capture's tracer class without its arguments
    graph = fx.GraphModule(made, made.graph)
    graph.register_forward_pre_hook(Sizes(ranges, conditions, expected))
    return graph.eval()


def _range(size: int | torch.SymInt, program: torch.export.ExportedProgram) -> tuple[int, int | None]:
    """Return the smallest and the largest size of an axis that a capture supports. None means no largest size."""
    if isinstance(size, int):
        return size, size
    found = program.range_constraints.get(size.node.expr)
    if found is None:
        return 0, None
    least, most = found.lower, found.upper
    return int(least) if least > _FEWEST else 0, int(most) if most.is_Integer else None


def _in_words(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else str(least) if least == most else f"{least} to {most}"


_BUILTINS = {torch.sym_max: max, torch.sym_min: min}  # Dynamo can't trace the keys in PyTorch 2.11


def _with_builtins(conditions: fx.GraphModule) -> fx.GraphModule:
    made = copy.deepcopy(conditions)
    for node in made.graph.nodes:
        node.target = _BUILTINS.get(node.target, node.target)
    made.recompile()
    return made


def _conditions(graph: fx.Graph) -> tuple[fx.GraphModule, tuple[tuple[bool, str], ...]]:
    """Move the checks of argument sizes from a graph into a new graph, which returns the values that are checked.

    Returns the new graph, and for each check the value that it expects and its text. Dynamo can trace the new graph.
    """
    of_sizes = {*graph.find_nodes(op="placeholder")}
    checks = []
    for node in graph.nodes:
        of_tensor = isinstance(node.target, torch._ops.OpOverload) and node.target not in (SYM_SIZE, ASSERT)
        if node.op == "call_function" and not of_tensor and of_sizes.issuperset(node.all_input_nodes):
            if node.target is ASSERT and node.all_input_nodes:
                checks.append(node)
            else:
                of_sizes.add(node)
    apart = fx.Graph()
    copies: dict[object, fx.Node] = {}
    for node in graph.nodes:
        if node in of_sizes and node.target is torch.sym_sum:  # which Dynamo does not trace
            terms = (copies.get(term, term) for term in node.args[0])
            copies[node] = functools.reduce(lambda left, right: apart.call_function(operator.add, (left, right)), terms)
        elif node in of_sizes:
            copies[node] = apart.node_copy(node, copies.__getitem__)
    checked, expected = [], []
    for check in checks:
        (condition, text) = check.args
        negated = condition.target is torch.sym_not  # which Dynamo does not trace either
        checked.append(copies[condition.args[0] if negated else condition])
        expected.append((not negated, str(text).partition(" on node")[0]))
    apart.output(tuple(checked))
    apart.eliminate_dead_code()
    for node in (*checks, *reversed([each for each in graph.nodes if each in of_sizes and each.op != "placeholder"])):
        if not node.users:
            graph.erase_node(node)
    return fx.GraphModule(nn.Module(), apart), tuple(expected)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress PyTorch's warnings and logs during a capture, and the graph that PyTorch prints if it fails.

    torch.export reads cudnn.allow_tf32, which raises an error while convolutions and RNNs have different precisions.
    Inside the block, convolutions therefore have the precision of RNNs.
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
