"""Fold scales and shifts after a convolution, such as batch norms, into the convolution's filters and bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from .aten_calls import CASTS


def scale_and_shift(
    conv: fx.Node, chain: Sequence[fx.Node], value: Callable[[fx.Node], Tensor], y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each channel's scale and shift in float64, such that scale * y + shift computes a chain of operators.

    The chain's first operator reads the output of `conv`, and each of the others reads the previous one's output.
    `value` returns the values of all other tensors that they read. `y` is a tensor of the output's shape with sizes of
    1 for all axes except the channels.
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
    """Fold a scale and shift [K] into a convolution's filters and bias [K], and return both in the filters' dtype.

    Filters are [K, C/groups, ...], or [C, K/groups, ...] for a transposed convolution with `transposed_groups` groups.
    The computation is in float64, because in half precision a batch norm's small epsilon would be 0.
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
