"""Batch normalisation folded into the convolutions before it: a kernel has it in its filters and bias then."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from .torch_activations import has_hooks
from .torch_example import (
    Seen,
    changes_are_counted,
    convolutions,
    example_arguments,
    refuse_training,
    replaced,
    run,
    tensors_of,
    watched,
)
from .torch_graph import traced

WRONG = 0.25  # norm of a difference as a fraction of an output's: twice what 50 layers of random filters round in TF32
_HALF = (torch.float16, torch.bfloat16)  # in which such layers' outputs may differ by as much as they are
_KINDS = (nn.BatchNorm2d, nn.SyncBatchNorm)


def inference_copy(module: nn.Module, example: object) -> tuple[nn.Module, tuple[object, ...], tuple[str, ...]]:
    """A copy of a network with batch norms folded, the arguments that an example is, and paths of what was folded.

    A folded batch norm is an `nn.Identity` in the copy. No parameter of the copy requires gradients, none is an
    inference tensor. Raises TrainingMode where some part of the network trains.
    """
    refuse_training(module)
    with torch.inference_mode(mode=False):
        network = copy.deepcopy(module).requires_grad_(requires_grad=False)
        arguments = example_arguments(network, example)
        return network, arguments, fold_batch_norms(network, arguments)


def fold_batch_norms(network: nn.Module, arguments: tuple[object, ...]) -> tuple[str, ...]:
    """Fold, in place, each batch norm that alone reads the output of a convolution; answers their paths.

    Both run once on the example, have no hooks, and nothing else reads their parameters. Folded in float64, whatever
    the network's dtype. In a network that `torch.fx` cannot trace, those within an `nn.Sequential` are found. None is
    where the network still runs one then, by a list of its own, or computes something else.
    """
    if not any(isinstance(part, _KINDS) for part in network.modules()):
        return ()
    with torch.no_grad():
        with watched(network, _is_foldable) as seen:
            expected = run(network, arguments)
        graph = traced(network, arguments, expected)
        pairs = [*(_pairs_in_sequences(network, arguments, seen) if graph is None else _pairs(graph))]
        hooked = {name for name, conv in convolutions(network).items() if has_hooks(conv)}
        folded: list[_Folded] = []
        for conv_name, norm_name in pairs:
            conv, norm = network.get_submodule(conv_name), network.get_submodule(norm_name)
            counted = changes_are_counted(conv) and changes_are_counted(norm)
            if type(conv) is nn.Conv2d and conv_name not in hooked and _is_foldable(norm) and counted:
                folded.append(_fold(network, norm_name, conv, norm))
        if folded and not _still_computes(network, arguments, expected.outputs, folded):
            for each in folded:
                each.undo(network)
            return ()
    return tuple(each.path for each in folded)


def _is_foldable(part: nn.Module) -> bool:
    """Whether a part of a network is a batch norm by statistics of its own, and nothing else."""
    return type(part) in _KINDS and part.running_mean is not None and not has_hooks(part)


def _pairs(graph: fx.GraphModule) -> Iterator[tuple[str, str]]:
    """Paths of modules that run once and of what alone reads their outputs, once too."""
    nodes = graph.graph.nodes
    calls = Counter(str(node.target) for node in nodes if node.op == "call_module")
    owners = {str(node.target).rpartition(".")[0] for node in nodes if node.op == "get_attr"}
    for node in nodes:
        before = node.all_input_nodes
        if node.op != "call_module" or len(before) != 1 or before[0].op != "call_module" or len(before[0].users) != 1:
            continue
        pair = (str(before[0].target), str(node.target))
        if all(calls[name] == 1 and name not in owners for name in pair):
            yield pair


def _pairs_in_sequences(network: nn.Module, arguments: tuple[object, ...], seen: Seen) -> Iterator[tuple[str, str]]:
    """The same of a network without a graph, which is run once more to see whether anything else reads parameters."""
    reads = _Reads()
    try:
        with reads:
            run(network, arguments)
    except Exception:  # noqa: BLE001 - of a compiled part that must be one graph, which it is not for a watcher
        return
    own = Counter[Tensor]()
    for part in network.modules():
        count = len(seen.inputs.get(part, ())) if isinstance(part, nn.Conv2d) else seen.runs[part]
        own.update(dict.fromkeys(part.parameters(recurse=False), count))
    for pair in seen.followers(network):
        parameters = (each for path in pair for each in network.get_submodule(path).parameters(recurse=False))
        if all(reads.counts[each] <= own[each] for each in parameters):
            yield pair


class _Reads(TorchFunctionMode):
    """Counts how many functions that make tensors are given each parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Tensor] = Counter()

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = function(*args, **(kwargs or {}))
        if tensors_of(result):  # neither a dtype nor a size
            self.counts.update({each for each in tensors_of((args, kwargs)) if isinstance(each, nn.Parameter)})
        return result


@dataclass(frozen=True, slots=True)
class _Folded:
    """A batch norm that is in a convolution now, and what was there."""

    path: str
    norm: nn.Module
    instead: nn.Module
    conv: nn.Conv2d
    weight: Tensor
    bias: Tensor | None

    def undo(self, network: nn.Module) -> None:
        self.conv.weight, self.conv.bias = self.weight, self.bias
        replaced(network, self.instead, self.norm)


def _fold(network: nn.Module, path: str, conv: nn.Conv2d, norm: nn.Module) -> _Folded:
    def wide(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.detach().double()

    weight, bias = fuse_conv_bn_weights(
        *(wide(conv.weight), wide(conv.bias), wide(norm.running_mean), wide(norm.running_var)),
        *(norm.eps, wide(norm.weight), wide(norm.bias)),
    )
    made = _Folded(path, norm, nn.Identity().eval(), conv, conv.weight, conv.bias)
    dtype = conv.weight.dtype
    conv.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    conv.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
    replaced(network, norm, made.instead)
    return made


def _still_computes(
    network: nn.Module, arguments: tuple[object, ...], expected: object, folded: Iterable[_Folded]
) -> bool:
    """Whether a network runs without the batch norms that are folded, and its outputs are what they were."""

    def refused(*_: object) -> None:
        raise RuntimeError("a batch norm ran that is folded")

    hooks = [each.norm.register_forward_pre_hook(refused) for each in folded]
    try:
        made = tensors_of(run(network, arguments).outputs)
        rounded = any(each.conv.weight.dtype in _HALF for each in folded)
        return rounded or all(_is_near(*pair) for pair in zip(made, tensors_of(expected), strict=True))
    except Exception:  # noqa: BLE001 - the network's own code, which may ask an nn.Identity for what it has not
        return False
    finally:
        for hook in hooks:
            hook.remove()


def _is_near(one: Tensor, other: Tensor) -> bool:
    """Whether an output may differ from the original's by rounding alone; one that is not finite says nothing."""
    if not other.is_floating_point() or not other.isfinite().all():
        return True
    return one.shape == other.shape and bool((one - other).norm() <= WRONG * other.norm())
