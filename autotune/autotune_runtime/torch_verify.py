"""Compare a converted network and the original with the original in float64: relative error and top-1 agreement."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_map

from .torch_example import copied, example_arguments, tensors_of

FEWEST = 1e-3
"""Minimum variation of outputs between images, as a fraction of their norm. Below it, agreement proves nothing."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of a network's outputs with the outputs in float64."""

    relative_error: float
    """norm of the difference divided by the norm of the output; the maximum of all outputs"""
    top1: int | None
    """number of images for which both networks predict the same class; None if outputs are not [N, classes]"""


@dataclass(frozen=True, slots=True)
class Verification:
    """The original and the converted network, each compared with float64 on the same images."""

    images: int
    original: Agreement
    converted: Agreement
    variation: float
    """norm of the outputs' deviation from their mean over images, as a fraction of their norm; nan for one image"""

    @property
    def degenerate(self) -> bool:
        """Whether outputs hardly depend on the images or are zeros, so that agreement proves nothing."""
        return not self.variation >= FEWEST and self.images > 1

    def __str__(self) -> str:
        words = [
            f"{name}: relative error {each.relative_error:.2e}"
            + ("" if each.top1 is None else f", top-1 as in float64 for {each.top1} of {self.images}")
            for name, each in (("original", self.original), ("converted", self.converted))
        ]
        if self.degenerate:
            words.append(
                f"NOTHING IS VERIFIED: outputs vary by {self.variation:.1e} between images; give a trained network, or "
                "calibrate() its batch norms"
            )
        return "\n".join(words)


def verify(original: nn.Module, converted: Callable[..., object], example: object) -> Verification:
    """Run both networks and a float64 copy of the original on an example, and compare the outputs.

    `example` is a tensor, a tuple of arguments or a tensor's sizes. Half-precision values are exact in float64. The
    float64 network takes four times as much memory as a half-precision one.
    """
    arguments = example_arguments(original, example)
    with torch.no_grad():
        expected = _leaves(copy.deepcopy(original).double()(*tree_map(_double, copied(arguments))))
        before = _agreement(_leaves(original(*copied(arguments))), expected)
        after = _agreement(_leaves(converted(*copied(arguments))), expected)
    first = expected[0]
    images = first.shape[0] if first.dim() else 1
    around = first - first.mean(0, keepdim=True) if images > 1 else first * math.nan
    return Verification(images, before, after, _ratio(around, first))


def calibrated(module: nn.Module, example: object) -> nn.Module:
    """Return a copy of a network whose batch norms have the statistics of an example's images.

    Use this for a network with random weights, because its outputs may all be zeros with the initial statistics. The
    statistics are computed in one pass with batch norms in training mode, in float32, or in float64 if the network or
    the images contain float64 values.
    """
    network, wide = copy.deepcopy(module), copy.deepcopy(module)
    if not _batch_norms(network):
        return network
    given = copied(example_arguments(module, example))
    dtypes = {each.dtype for each in (*module.parameters(), *module.buffers(), *tensors_of(given))}
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    wide = wide.double() if dtype == torch.float64 else wide.float()
    for norm in _batch_norms(wide):
        norm.reset_running_stats()
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        wide(*tree_map(lambda each: each.to(dtype) if _is_float(each) else each, given))
        for norm, statistics in zip(_batch_norms(network), _batch_norms(wide), strict=True):
            for name, buffer in norm.named_buffers(recurse=False):
                buffer.copy_(statistics.get_buffer(name))
    return network


def _batch_norms(network: nn.Module) -> list[_BatchNorm]:
    return [part for part in network.modules() if isinstance(part, _BatchNorm)]


def _is_float(given: object) -> bool:
    return isinstance(given, Tensor) and given.is_floating_point()


def _double(given: object) -> object:
    return given.double() if isinstance(given, Tensor) and given.is_floating_point() else given


def _leaves(outputs: object) -> list[Tensor]:
    """Return the floating-point tensors in a network's outputs, including those in tuples and dictionaries, in
    float64.
    """
    return [leaf.double() for leaf in tree_flatten(outputs)[0] if _is_float(leaf)]


def _agreement(outputs: list[Tensor], expected: list[Tensor]) -> Agreement:
    errors = [_ratio(one - other, other) for one, other in zip(outputs, expected, strict=True)]
    worst = max(errors, key=lambda error: math.inf if math.isnan(error) else error)
    first = expected[0]
    top1 = int((outputs[0].argmax(1) == first.argmax(1)).sum()) if first.dim() == 2 and first.shape[1] > 1 else None
    return Agreement(worst, top1)


def _ratio(one: Tensor, other: Tensor) -> float:
    return float(one.norm() / other.norm())
