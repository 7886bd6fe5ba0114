"""The start of the line: one conv2d forward pass (`Conv2dProblem`) and a network's use of it (`Layer`).

The letters are cuDNN's and CUTLASS's: input x [N, C, H, W], filters w [K, C/groups, R, S],
output y [N, K, P, Q]. Layout `nhwc` stores x [N, H, W, C], w [K, R, S, C/groups], y [N, P, Q, K].
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from autotune.errors import StudyError

DTYPES = ("f32", "f16", "bf16")
LAYOUTS = ("nchw", "nhwc")
EPILOGUES = ("none", "bias", "bias_relu")
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
MAX_SIZE = 2**31 - 1  # a size is a 32-bit int in every kernel


@dataclass(frozen=True, slots=True)
class Conv2dProblem:
    """One conv2d forward pass: sizes, stride, padding, dilation, groups, storage type, layout and epilogue.

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
        for name in SIZE_NAMES:
            value = getattr(self, name)
            least = 0 if name in ("pad_h", "pad_w") else 1
            if isinstance(value, bool) or not isinstance(value, int):
                raise StudyError(f"{name} = {value!r}: expected a whole number")
            if not least <= value <= MAX_SIZE:
                raise StudyError(f"{name} = {value}: expected {least} to {MAX_SIZE}")
        for name, allowed in (("dtype", DTYPES), ("layout", LAYOUTS), ("epilogue", EPILOGUES)):
            value = getattr(self, name)
            if value not in allowed:
                raise StudyError(f"{name} = {value!r}: expected one of {', '.join(allowed)}")
        for axis, size, taps, pad, dilation in (
            ("height (r against h)", self.h, self.r, self.pad_h, self.dilation_h),
            ("width (s against w)", self.w, self.s, self.pad_w, self.dilation_w),
        ):
            if (taps - 1) * dilation + 1 > size + 2 * pad:
                raise StudyError(
                    f"filter larger than the padded input in {axis}: a filter of {taps} with dilation {dilation} "
                    f"spans {(taps - 1) * dilation + 1}, the padded input {size + 2 * pad}; "
                    f"make the filter smaller or the padding larger"
                )
        for name in ("c", "k"):
            if getattr(self, name) % self.groups:
                raise StudyError(f"groups = {self.groups} does not divide {name} = {getattr(self, name)}")

    @property
    def p(self) -> int:
        """Output height."""
        return (self.h + 2 * self.pad_h - (self.r - 1) * self.dilation_h - 1) // self.stride_h + 1

    @property
    def q(self) -> int:
        """Output width."""
        return (self.w + 2 * self.pad_w - (self.s - 1) * self.dilation_w - 1) // self.stride_w + 1

    @property
    def x_elements(self) -> int:
        """Elements of the input x."""
        return self.n * self.c * self.h * self.w

    @property
    def w_elements(self) -> int:
        """Elements of the filters w."""
        return self.k * self.reduction

    @property
    def y_elements(self) -> int:
        """Elements of the output y."""
        return self.n * self.k * self.p * self.q

    @property
    def element_bytes(self) -> int:
        """Bytes of one stored element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def reduction(self) -> int:
        """L, the products summed into one output: c / groups * r * s."""
        return self.c // self.groups * self.r * self.s

    @property
    def flops(self) -> int:
        """Floating-point operations of the direct algorithm, a multiply-add counted as two."""
        return 2 * self.y_elements * self.reduction

    @property
    def tensor_bytes(self) -> int:
        """Bytes of x, w, y and, where there is one, bias."""
        bias = 0 if self.epilogue == "none" else self.k
        return self.element_bytes * (self.x_elements + self.w_elements + self.y_elements + bias)

    def names(self) -> dict[str, int | str]:
        """The names that template expressions see: every field, and p and q."""
        return {**{name: getattr(self, name) for name in _FIELDS}, "p": self.p, "q": self.q}

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
SIZE_NAMES = tuple(field.name for field in dataclasses.fields(Conv2dProblem) if field.type == "int")


@dataclass(frozen=True, slots=True)
class Layer:
    """A problem with its name in a study and how often the network runs it (the weight in summaries)."""

    name: str
    problem: Conv2dProblem
    count: int = 1
