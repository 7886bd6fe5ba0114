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
    "pixel_mean": "mean",
    "gate": "gate",
}
"""The kind of an operation's layers."""


@dataclass(frozen=True, slots=True)
class Layer(Generic[Of]):
    """A convolution, norm, concatenation, pool or gate of a network."""

    kind: str
    """one of KINDS"""
    label: str
    """a name for people, such as layer1.0.conv1"""
    problem: Of | None
    """the layer and its weights; None if no kernel computes it"""
    why_not: str
    """why `problem` is None"""
    flops: int | None
    """as the operation counts them; None if a size is unknown"""
