"""A problem of conv2d with fields for its sizes, for the conversion of networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from .declared import INTERFACE
from .interface import DeclaredProblem

EPILOGUES = INTERFACE.words["epilogue"]
_SIZES = tuple(size.name for size in INTERFACE.sizes)


@dataclass(frozen=True, slots=True)
class Problem:
    """One conv2d forward pass: y [N, K, P, Q] = epilogue(conv2d(x [N, C, H, W], w [K, C/groups, R, S])).

    Layout nhwc stores x [N, H, W, C], w [K, R, S, C/groups], y [N, P, Q, K]. Raises ValueError for an unknown dtype,
    layout or epilogue; the library decides whether the sizes make a convolution.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    dtype: str = "f32"
    layout: str = "nchw"
    epilogue: str = "none"

    def __post_init__(self) -> None:
        _ = self.declared

    @classmethod
    def of(cls, sizes: Iterable[int], dtype: str, layout: str, epilogue: str) -> Problem:
        """The problem with these numbers, in the order of the fields."""
        return cls(**dict(zip(_SIZES, sizes, strict=True)), dtype=dtype, layout=layout, epilogue=epilogue)

    @property
    def declared(self) -> DeclaredProblem:
        """The same problem as a general operation's."""
        return INTERFACE.problem(dataclasses.asdict(self))

    @property
    def p(self) -> int:
        """Output height."""
        return (self.h + 2 * self.pad_h - (self.r - 1) * self.dilation_h - 1) // self.stride_h + 1

    @property
    def q(self) -> int:
        """Output width."""
        return (self.w + 2 * self.pad_w - (self.s - 1) * self.dilation_w - 1) // self.stride_w + 1

    @property
    def has_residual(self) -> bool:
        """Whether a pass adds an array z of y's shape."""
        return self.epilogue.startswith("bias_add")

    @property
    def activation(self) -> str:
        """The activation of its epilogue, such as relu; empty if there is none."""
        return self.epilogue.removeprefix("none").removeprefix("bias").removeprefix("_add").removeprefix("_")


def epilogue_name(*, residual: bool, activation: str) -> str:
    """The name of an epilogue with a bias; `activation` is a word such as relu, or empty. Not every name exists."""
    return "_".join(("bias", *(("add",) if residual else ()), *((activation,) if activation else ())))
