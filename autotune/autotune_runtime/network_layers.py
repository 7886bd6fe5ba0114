"""A layer of a network as the problem of a kernel, or why no kernel computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Of = TypeVar("Of", covariant=True)
KINDS: Mapping[str, str] = {
    "conv2d": "convolution",
    "conv": "convolution",
    "conv_transpose": "convolution",
    "norm": "norm",
    "concat": "concatenation",
    "max_pool2d": "max pool",
    "avg_pool2d": "average pool",
    "pixel_mean": "mean",
    "gate": "gate",
}
"""The kind of an operation's layers."""
PLAIN = tuple(operation for operation, kind in KINDS.items() if kind != "convolution")
"""The operations whose layers have no filters."""
LINEAR = "linear layer"
"""The kind of a convolution that is a linear layer of rows [..., C], the pixels of channels-last images."""


@dataclass(frozen=True, slots=True)
class Layer(Generic[Of]):
    """A convolution, linear layer, norm, concatenation, pool or gate of a network."""

    kind: str
    """one of KINDS, or LINEAR"""
    label: str
    """a name for people, such as layer1.0.conv1"""
    problem: Of | None
    """the layer and its weights; None if no kernel computes it"""
    why_not: str
    """why `problem` is None"""
    flops: int | None
    """as the operation counts them; None if a size is unknown"""
    axis: int = 1
    """that of the channels in its output; a linear layer's is the last"""

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear layer."""
        return self.kind == LINEAR
