"""Rewrite max pools in training so that Inductor computes their gradients with a fraction of the instructions.

Inductor searches up to four windows for each input. The rewritten gradient treats the inputs in even and odd rows and
columns as four tensors, so one kernel compares the indices of nine windows for four inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from .torch_example import is_channels_last
from .torch_training_norms import stored

_ARGUMENTS = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_SIZES = {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1}


def rewrite_pools(graph: fx.GraphModule) -> None:
    """Replace 3 x 3 max pools with stride 2 and padding 1 in a graph captured by Dynamo, which is changed."""
    for node in graph.graph.find_nodes(op="call_function", target=functional.max_pool2d):
        given = {"padding": 0, "dilation": 1, **dict(zip(_ARGUMENTS, node.args, strict=False)), **node.kwargs}
        x = given["input"]
        if any(given.get(name) not in (size, (size, size)) for name, size in _SIZES.items()):
            continue
        if given.get("ceil_mode") or given.get("return_indices") or not isinstance(x, fx.Node):
            continue
        value = x.meta["example_value"]
        if value.dim() == 4 and is_channels_last(value) and value.shape[2] % 2 == 0 and value.shape[3] % 2 == 0:
            node.target, node.args, node.kwargs = pooled, (x,), {}
    graph.recompile()


def pooled(x: Tensor) -> Tensor:
    """Compute the maxima of 3 x 3 windows of x [N, C, H, W], with stride 2 and padding 1. H and W must be even."""
    y: Tensor = _Pooled.apply(x)
    return y


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        y, indices = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        ctx.save_for_backward(indices)
        ctx.width = x.shape[3]
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> Tensor:
        n, c, p, q = dy.shape
        dy, indices = (each.permute(0, 2, 3, 1) for each in (dy, ctx.saved_tensors[0]))
        rows, columns = (torch.arange(0, 2 * size, 2, device=dy.device).view(-1, 1) for size in (p, q))
        first = rows.unsqueeze(2) * ctx.width + columns

        def gradient(row: int, column: int) -> Tensor:
            """Compute the gradient [N, P, Q, C] for the inputs in rows 2 * p + row and columns 2 * q + column.

            Odd rows and columns are in two windows of their axis.
            """
            found = torch.zeros_like(dy)
            for down in range(row + 1):
                for right in range(column + 1):
                    ours = _from(indices, down, right, -1) == first + (row * ctx.width + column)
                    found = found + torch.where(ours, _from(dy, down, right, 0), 0)
            return stored(found)

        of_rows = [torch.stack((gradient(row, 0), gradient(row, 1)), 3) for row in (0, 1)]
        return torch.stack(of_rows, 2).reshape(n, 2 * p, 2 * q, c).permute(0, 3, 1, 2)


def _from(each: Tensor, down: int, right: int, fill: int) -> Tensor:
    """Shift a tensor [N, P, Q, C] up by `down` rows and left by `right` columns, filling the end with `fill`."""
    return functional.pad(each[:, down:, right:], (0, 0, 0, right, 0, down), value=fill)
