"""Norms in a capture: operators whose outputs have the shapes of their inputs.

PyTorch decomposes its own to find that out, which takes half of the capture of a DenseNet and a third of that of an
image decoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx
from torch._C import _is_any_autocast_enabled
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")  # that of this copy of the package
_OPERATORS = torch.library.Library(_NAMESPACE, "FRAGMENT")


def _whole(aten: torch._ops.OpOverload, memory_format: torch.memory_format) -> torch._ops.OpOverload:
    """An operator with the schema of one of ATen's, whose output has the shape of its input."""
    name = aten._schema.name.removeprefix("aten::")
    _OPERATORS.define(str(aten._schema).removeprefix("aten::"))
    _OPERATORS.impl(name, lambda x, *_: torch.empty_like(x, memory_format=memory_format), "Meta")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return found


_ATEN = {
    _whole(torch.ops.aten.batch_norm.default, torch.preserve_format): torch.ops.aten.batch_norm.default,
    _whole(torch.ops.aten.group_norm.default, torch.contiguous_format): torch.ops.aten.group_norm.default,
    _whole(torch.ops.aten.layer_norm.default, torch.contiguous_format): torch.ops.aten.layer_norm.default,
    _whole(torch.ops.aten.rms_norm.default, torch.contiguous_format): torch.ops.aten.rms_norm.default,
}
"""such operators to ATen's"""
_FUNCTIONS = dict(
    zip((functional.batch_norm, functional.group_norm, functional.layer_norm, functional.rms_norm), _ATEN, strict=True)
)


class WholeNorms(TorchFunctionMode):
    """Trace norms as such operators, except where autocast chooses their types or a batch norm trains."""

    def __torch_function__(
        self, func: object, types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        assert callable(func)  # noqa: S101 - PyTorch calls nothing else
        given = kwargs or {}
        if func in _FUNCTIONS:
            of = inspect.signature(func).bind(*args, **given)
            of.apply_defaults()
            arguments = _in_order(func, of.arguments)
            x = arguments[0]
            if isinstance(x, Tensor) and not _is_any_autocast_enabled() and not of.arguments.get("training"):
                return _FUNCTIONS[func](*arguments)
        return func(*args, **given)


def _in_order(func: object, given: Mapping[str, object]) -> list[object]:
    """The arguments of one of these functions, as its operator takes them."""
    if func is functional.batch_norm:
        names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
        return [*(given[name] for name in names), torch.backends.cudnn.enabled]
    return [*given.values(), *([] if func is functional.rms_norm else [torch.backends.cudnn.enabled])]


def with_aten_norms(graph: fx.Graph) -> None:
    """Put ATen's operators in their places."""
    for operator, aten in _ATEN.items():
        for node in graph.find_nodes(op="call_function", target=operator):
            node.target = aten
