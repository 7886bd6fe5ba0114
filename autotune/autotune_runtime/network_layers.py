"""Describe a network's layer: the problem that a kernel computes, or why no kernel does."""

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
"""The kind of layer computed by each operation."""
PLAIN = tuple(operation for operation, kind in KINDS.items() if kind != "convolution")
"""Operations whose layers have no filters."""
BATCH_NORM = "batch norm"
"""The kind of a batch norm that isn't folded into another layer, which a kernel of `concat` computes."""
LINEAR = "linear layer"
"""The kind of a linear layer with rows [..., C], which a kernel computes as a 1x1 convolution of channels-last
images.
"""


@dataclass(frozen=True, slots=True)
class Layer(Generic[Of]):
    """One of a network's convolutions, linear layers, norms, concatenations, pools or gates."""

    kind: str
    """a value of KINDS, LINEAR or BATCH_NORM"""
    label: str
    """name for messages, such as layer1.0.conv1"""
    problem: Of | None
    """the problem that a kernel computes, including the layer's own bias or weights; None if no kernel can"""
    why_not: str
    """why `problem` is None"""
    flops: int | None
    """floating-point operations, as the operation counts them; None if a size is unknown"""
    axis: int = 1
    """axis of the channels in the output; the last axis for a linear layer"""

    @property
    def is_linear(self) -> bool:
        """Whether the layer is a linear layer."""
        return self.kind == LINEAR
