"""Compute a convolution's outputs in float64 at a limited number of pixels, which takes milliseconds.

PyTorch's float64 convolutions take seconds if the images are large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .convolution import Geometry

MOST_ELEMENTS = 1 << 25
"""Maximum number of array elements compared at once. For a convolution, these are the input elements read by all
pixels.
"""


def chosen_pixels(y: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, ...]:
    """Choose all pixels of y [N, K, ...], or random ones if there are too many.

    Returns the pixels' indices along each axis except K. Filters are [K, C/groups, ...] or, if transposed,
    [C, K/groups, ...].
    """
    sizes = (y.shape[0], *y.shape[2:])
    most = max(1, MOST_ELEMENTS // (max(weight.shape[0], weight.shape[1] * groups) * math.prod(weight.shape[2:])))
    if math.prod(sizes) <= most:
        chosen = torch.arange(math.prod(sizes), device=y.device)
    else:
        seeded = torch.Generator(y.device).manual_seed(0)
        chosen = torch.randint(math.prod(sizes), (most,), generator=seeded, device=y.device)
    return torch.unravel_index(chosen, sizes)


def at_pixels(tensor: Tensor, pixels: tuple[Tensor, ...]) -> Tensor:
    """Return the channels [..., C] at some pixels of a tensor [N, C, ...], in float64."""
    return tensor.movedim(1, -1)[pixels].double()


def sums(x: Tensor, weight: Tensor, pixels: tuple[Tensor, ...], of: Geometry) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a convolution in float64 at some pixels of its output.

    Returns the sums of products [pixels, K], the sums of the products' magnitudes [pixels, K], and the fraction of the
    products that don't read padding [pixels, 1].
    """
    n, *places = pixels
    axes = len(places)
    read: list[Tensor] = [n.view(-1, *(1,) * axes)]
    inside = torch.ones((), dtype=torch.bool, device=x.device)
    for axis, place in enumerate(places):
        taps = of.dilation[axis] * torch.arange(weight.shape[2 + axis], device=x.device)
        if of.transposed:
            scaled = place[:, None] + of.before[axis] - taps
            index, met = scaled.div(of.stride[axis], rounding_mode="floor"), scaled % of.stride[axis] == 0
        else:
            index = place[:, None] * of.stride[axis] - of.before[axis] + taps
            met = torch.ones_like(index, dtype=torch.bool)
        size = x.shape[2 + axis]
        shape = (-1, *(len(taps) if each == axis else 1 for each in range(axes)))
        inside = inside & (met & (index >= 0) & (index < size)).view(shape)
        read.append(index.clamp(0, size - 1).view(shape))
    values = at_pixels(x, tuple(read)).masked_fill_(~inside.unsqueeze(-1), 0.0)
    values = values.flatten(1, -2).unflatten(-1, (of.groups, -1))
    filters = weight.double().flatten(2).unflatten(0, (of.groups, -1))
    products = f"ptgc,{'gckt' if of.transposed else 'gkct'}->pgk"
    exact, magnitudes = (torch.einsum(products, *each) for each in ((values, filters), (values.abs(), filters.abs())))
    left = inside.expand(len(n), *weight.shape[2:]).flatten(1).double().mean(1, keepdim=True)
    return exact.flatten(1), magnitudes.flatten(1), left
