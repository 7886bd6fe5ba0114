"""Rewrite batch norms in training as formulas for which Inductor generates kernels that read less memory.

For PyTorch's batch norm, addition and ReLU, each of Inductor's backward kernels reads the ReLU's output to compute the
mask, and all gradients that are summed. Without a residual, the rewritten backward pass computes the mask from the
norm's input, which it reads anyway. With a residual, it stores the masked sum of the gradients once.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.autograd.function import FunctionCtx
from torch.nn import functional

RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_")
_ADDITIONS = (operator.add, torch.add, "add")
_ADDITIONS_IN_PLACE = (operator.iadd, "add_")
_TENSORS = ("input", "running_mean", "running_var", "weight", "bias")
_ARGUMENTS = (*_TENSORS, "training", "momentum", "eps")


def rewrite_norms(graph: fx.GraphModule) -> None:
    """Replace batch norms in training mode in a graph captured by Dynamo, which is changed."""
    for node in graph.graph.find_nodes(op="call_function", target=functional.batch_norm):
        given = {"momentum": 0.1, "eps": 1e-5, **dict(zip(_ARGUMENTS, node.args, strict=False)), **node.kwargs}
        tensors = tuple(given.get(name) for name in _TENSORS)
        if given.get("training") is not True or not all(isinstance(each, fx.Node) for each in tensors):
            continue
        replaced = [node]
        residual = None
        if (addition := _only_user(node)) is not None and (residual := _residual(addition, node)) is not None:
            replaced.append(addition)
        relu = _only_user(replaced[-1])
        if relu is not None and relu.target in RELUS:
            replaced.append(relu)
        else:
            replaced, residual = [node], None
        with graph.graph.inserting_before(replaced[-1]):
            arguments = (*tensors, given["momentum"], given["eps"], residual, len(replaced) > 1)
            made = graph.graph.call_function(normalized, arguments)
        made.meta = dict(replaced[-1].meta)
        replaced[-1].replace_all_uses_with(made)
        for each in reversed(replaced):
            graph.graph.erase_node(each)
    _count_together(graph.graph)
    graph.recompile()


def _count_together(graph: fx.Graph) -> None:
    """Make a single kernel increment the counters of all batch norms."""
    counts = [node for node in graph.find_nodes(op="call_method", target="add_") if _counts(node)]
    if counts:
        with graph.inserting_before(counts[0]):
            graph.call_function(torch._foreach_add_, ([node.args[0] for node in counts], 1))
    for node in counts:
        graph.erase_node(node)


def _counts(node: fx.Node) -> bool:
    """Return whether a node adds 1 to a counter that no other node reads."""
    if len(node.args) != 2 or node.args[1] != 1 or node.kwargs or node.users:
        return False
    counter = node.args[0]
    if not isinstance(counter, fx.Node) or counter.op != "placeholder" or len(counter.users) > 1:
        return False
    return node.meta["example_value"].dim() == 0


def mask_gradient(x: fx.Node) -> None:
    """Mark the gradient of a batch norm as masked."""
    x.args = (*x.args, True)


def _only_user(node: fx.Node) -> fx.Node | None:
    """Return a node's only reader, or None if it has several or none."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _residual(addition: fx.Node, node: fx.Node) -> fx.Node | None:
    """Return the tensor that `addition` adds to a batch norm's output `node`.

    Returns None if `addition` is another operator, or if the tensor's shape or dtype differs from the output's.
    """
    if addition.target not in (*_ADDITIONS, *_ADDITIONS_IN_PLACE) or len(addition.args) != 2 or addition.kwargs:
        return None
    first, second = addition.args
    other = second if first is node else first
    if (
        not isinstance(other, fx.Node)
        or other is node
        or (addition.target in _ADDITIONS_IN_PLACE and first is not node)
    ):
        return None
    of, residual = (each.meta.get("example_value") for each in (node, other))
    same = isinstance(residual, Tensor) and residual.shape == of.shape and residual.dtype == of.dtype
    return other if same else None


def normalized(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    momentum: float,
    eps: float,
    residual: Tensor | None,
    relu: bool,  # noqa: FBT001 - an argument of a graph's node
    masked: bool = False,  # noqa: FBT001, FBT002 - the same
) -> Tensor:
    """Compute a batch norm in training mode, add the residual if there is one, and apply a ReLU if `relu` is set.

    `masked` means that the incoming gradient is already 0 where the ReLU's output is 0.
    """
    count = x.numel() // x.shape[1]
    with torch.no_grad():
        var, mean = torch.var_mean(_exact(x), _but_channels(x), correction=0)
        running_mean.copy_(mean * momentum + running_mean * (1 - momentum))
        running_var.copy_(var * (momentum * count / (count - 1)) + running_var * (1 - momentum))
    y: Tensor = _Normalized.apply(x, residual, weight, bias, mean, torch.rsqrt(var + eps), relu, masked)
    return y


class _Normalized(torch.autograd.Function):
    """`normalized` with given statistics, which the gradient treats as the statistics of x."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        inverse: Tensor,
        relu: bool,  # noqa: FBT001 - PyTorch passes no names
        masked: bool,  # noqa: FBT001 - the same
    ) -> Tensor:
        scale = weight * inverse
        shift = bias - mean * scale
        y = _scaled(x, scale, shift)
        if residual is not None:
            y = y + residual
        y = (torch.relu(y) if relu else y).to(x.dtype)
        ctx.save_for_backward(x, y, weight, bias, mean, inverse, scale, shift)
        ctx.relu, ctx.adds, ctx.masked = relu, residual is not None, masked
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, inverse, scale, shift = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        if ctx.masked:
            pass
        elif ctx.adds:
            dy = stored(torch.where(y > 0, dy, 0))
        elif ctx.relu:
            dy = torch.where(_scaled(x, stored(scale), stored(shift)) > 0, stored(dy), 0)
        wide = _exact(dy)
        dbias = wide.sum(_but_channels(x))
        dweight = (wide * (_exact(x) - _of_channels(mean, x))).sum(_but_channels(x)) * inverse
        slope = scale * inverse * dweight / count
        dx = wide * _of_channels(scale, x) - _scaled(x, stored(slope), stored(scale * dbias / count - slope * mean))
        return (
            dx.to(x.dtype),
            dy if ctx.adds else None,
            dweight.to(weight.dtype),
            dbias.to(bias.dtype),
            *(None,) * 4,
        )


def _exact(x: Tensor) -> Tensor:
    """Convert a tensor to float32, unless it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _but_channels(x: Tensor) -> Sequence[int]:
    """Return the axes over which a batch norm sums."""
    return [0, *range(2, x.dim())]


def _of_channels(each: Tensor, x: Tensor) -> Tensor:
    """View a tensor [C] so that it broadcasts over x [N, C, ...]."""
    return each.view(-1, *(1,) * (x.dim() - 2))


def _scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return _exact(x) * _of_channels(scale, x) + _of_channels(shift, x)


def stored(each: Tensor) -> Tensor:
    """Return the tensor as an `as_strided` view, so that Inductor stores it instead of recomputing it in each
    kernel.
    """
    return each if 0 in each.stride() else each.as_strided(each.shape, each.stride())
