"""Fold scales and shifts after a convolution, such as batch norms, into its filters and bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from .aten_calls import CASTS


def scale_and_shift(
    conv: fx.Node, chain: Sequence[fx.Node], value: Callable[[fx.Node], Tensor], y: Tensor
) -> tuple[Tensor, Tensor]:
    """The effect of operators on each channel of a convolution's output [1, K, ...]: f(y) = scale * y + shift, in
    float64.

    Each operator of the chain reads the output of the previous one, and otherwise tensors whose values `value` knows.
    """

    def behind(number: float) -> Tensor:
        made, before = torch.full_like(y, number, dtype=torch.float64), conv
        for node in chain:
            if node.target._schema.name.removeprefix("aten::") in CASTS:
                before = node
                continue
            known = {each: _wide(value(each)) for each in node.all_input_nodes if each is not before}
            known[before] = made
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            made, before = node.target(*args, **kwargs), node
        return made.flatten()

    shift = behind(0.0)
    return behind(1.0) - shift, shift


def with_scale_and_shift(
    weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor, *, transposed_groups: int = 0
) -> tuple[Tensor, Tensor]:
    """Filters and bias [K] of a convolution, including a scale and a shift after it, in its dtype.

    Filters are [K, C/groups, ...], or [C, K/groups, ...] of a transposed convolution, whose groups are given. Computed
    in float64, because in half precision a small epsilon of a batch norm would be 0.
    """
    if transposed_groups:
        of_group = weight.double().unflatten(0, (transposed_groups, -1))  # [groups, C/groups, K/groups, ...]
        scales = scale.view(transposed_groups, 1, -1, *(1,) * (weight.dim() - 2))
        made = (of_group * scales).flatten(0, 1)
    else:
        made = weight.double() * scale.view(-1, *(1,) * (weight.dim() - 1))
    total = shift if bias is None else bias.double() * scale + shift
    return made.to(weight.dtype), total.to(weight.dtype)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
