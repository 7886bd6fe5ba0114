"""Fold scales and shifts after a convolution, such as batch norms, into its filters and bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx


def scale_and_shift(
    conv: fx.Node, chain: Sequence[fx.Node], value: Callable[[fx.Node], Tensor], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The effect of operators on each channel of a convolution's output y: f(y) = scale * y + shift, in float64.

    Each operator of the chain reads the output of the previous one, and otherwise tensors whose values `value` knows.
    """

    def behind(number: float) -> Tensor:
        made, before = torch.full((1, len(weight), 1, 1), number, dtype=torch.float64, device=weight.device), conv
        for node in chain:
            known = {each: _wide(value(each)) for each in node.all_input_nodes if each is not before}
            known[before] = made
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            made, before = node.target(*args, **kwargs), node
        return made.flatten()

    shift = behind(0.0)
    return behind(1.0) - shift, shift


def with_scale_and_shift(weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Filters [K, C/groups, R, S] and bias [K] of a convolution, including a scale and a shift after it, in its dtype.

    Computed in float64, because in half precision a small epsilon of a batch norm would be 0.
    """
    made = weight.double() * scale.view(-1, 1, 1, 1)
    total = shift if bias is None else bias.double() * scale + shift
    return made.to(weight.dtype), total.to(weight.dtype)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
