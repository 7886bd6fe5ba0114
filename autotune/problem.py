"""The start of the line: one conv2d forward pass (`Conv2dProblem`) and a network's use of it (`Layer`).

The letters are cuDNN's and CUTLASS's: input x [N, C, H, W], filters w [K, C/groups, R, S],
output y [N, K, P, Q]. Layout `nhwc` stores x [N, H, W, C], w [K, R, S, C/groups], y [N, P, Q, K].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from autotune.operation import DTYPE_BYTES, Array, operation
from autotune.trial import Value

_KEPT = 4096  # problems whose arrays and cost a process keeps


@dataclass(frozen=True, slots=True)
class Conv2dProblem:
    """One conv2d forward pass: sizes, stride, padding, dilation, groups, storage type, layout and epilogue.

    What these may be, and what follows from them, is declared in `templates/conv2d/operation.toml`; this record gives
    the fields types.

    Raises StudyError when a size is out of range, the filter exceeds the padded input, or groups do not
    divide c and k.
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
        operation().check(_fields(self))

    @property
    def p(self) -> int:
        """Output height."""
        return int(_evaluated(self).names["p"])

    @property
    def q(self) -> int:
        """Output width."""
        return int(_evaluated(self).names["q"])

    @property
    def activation(self) -> str:
        """What its epilogue applies to the finished sums; `identity` where that is nothing."""
        return str(_evaluated(self).names["activation"])

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Every array that the problem has, in the operation's order."""
        return _evaluated(self).arrays

    def array(self, name: str) -> Array:
        """One of them."""
        return next(array for array in self.arrays if array.name == name)

    def has(self, name: str) -> bool:
        """Whether it has an array that not every problem has."""
        return any(array.name == name for array in self.arrays)

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The arrays that a kernel reads and must not change."""
        return tuple(array for array in self.arrays if array.role != "out")

    @property
    def output(self) -> Array:
        """The array that a kernel computes."""
        return next(array for array in self.arrays if array.role == "out")

    @property
    def element_bytes(self) -> int:
        """Bytes of one stored element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def reduction(self) -> int:
        """L, the products summed into one output."""
        return _evaluated(self).reduction

    @property
    def flops(self) -> int:
        """Floating-point operations of the direct algorithm, a multiply-add counted as two."""
        return _evaluated(self).flops

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.size_bytes for array in self.arrays)

    def names(self) -> dict[str, Value]:
        """The names that template expressions see: every field, and what the operation derives from them."""
        return dict(_evaluated(self).names)

    def with_n(self, n: int) -> Conv2dProblem:
        """The same layer shape at another batch size."""
        return dataclasses.replace(self, n=n)

    def __str__(self) -> str:
        text = f"n{self.n} c{self.c} {self.h}x{self.w} k{self.k} {self.r}x{self.s}"
        for label, pair, default in (
            ("stride", (self.stride_h, self.stride_w), 1),
            ("pad", (self.pad_h, self.pad_w), 0),
            ("dilation", (self.dilation_h, self.dilation_w), 1),
        ):
            if pair != (default, default):
                text += f" {label} {pair[0]}" if pair[0] == pair[1] else f" {label} {pair[0]}x{pair[1]}"
        if self.groups != 1:
            text += f" groups {self.groups}"
        text += f" {self.dtype} {self.layout}"
        return text if self.epilogue == "none" else f"{text} {self.epilogue}"


_FIELDS = tuple(field.name for field in dataclasses.fields(Conv2dProblem))


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """What follows from a problem's fields."""

    names: Mapping[str, Value]
    arrays: tuple[Array, ...]
    reduction: int
    flops: int


def _fields(problem: Conv2dProblem) -> dict[str, Value]:
    return {name: getattr(problem, name) for name in _FIELDS}


@lru_cache(maxsize=_KEPT)
def _evaluated(problem: Conv2dProblem) -> _Evaluated:
    declared = operation()
    names = declared.names_from(_fields(problem))
    return _Evaluated(
        names=names,
        arrays=declared.arrays_of(names),
        reduction=declared.reduction.integer(names),
        flops=declared.flops.integer(names),
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """A problem with its name in a study and how often the network runs it (the weight in summaries)."""

    name: str
    problem: Conv2dProblem
    count: int = 1
