"""The C interface `autotune_conv2d.h` in Python: what conv2d has besides any operation's `interface`."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import interface
from .interface import Interface, InterfaceArray, InterfaceSize, LibraryError

DTYPES = ("f32", "f16", "bf16")
LAYOUTS = ("nchw", "nhwc")
_ACTIVATIONS = ("relu6", "silu", "hardswish", "sigmoid", "gelu", "gelu_tanh", "leaky_relu")  # that came after ReLU
EPILOGUES = (
    *("none", "bias", "bias_relu", "bias_add", "bias_add_relu"),
    *(f"{terms}_{activation}" for activation in _ACTIVATIONS for terms in ("bias", "bias_add")),
)
ARRAYS = ("x", "w", "bias", "y", "z")
"""In the order of the C interface's conv2d_arguments."""


class Conv2dError(LibraryError):
    """The library refused a call; the message is its own words."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One conv2d forward pass: y [N, K, P, Q] = epilogue(conv2d(x [N, C, H, W], w [K, C/groups, R, S])).

    Layout nhwc stores x [N, H, W, C], w [K, R, S, C/groups], y [N, P, Q, K]. Raises ValueError for a dtype, layout or
    epilogue that there is not; whether the sizes make a convolution is for the library to say.
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
        for name, allowed in _WORDS:
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {', '.join(allowed)}")

    @classmethod
    def of(cls, sizes: Iterable[int], dtype: str, layout: str, epilogue: str) -> Problem:
        """The problem with these numbers, in the order of the fields."""
        return cls(**dict(zip(_SIZES, sizes, strict=True)), dtype=dtype, layout=layout, epilogue=epilogue)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields of the C interface's conv2d_problem."""
        words = (allowed.index(getattr(self, name)) for name, allowed in _WORDS)
        return (*(getattr(self, name) for name in _SIZES), *words)

    @property
    def p(self) -> int:
        """Output height."""
        return (self.h + 2 * self.pad_h - (self.r - 1) * self.dilation_h - 1) // self.stride_h + 1

    @property
    def q(self) -> int:
        """Output width."""
        return (self.w + 2 * self.pad_w - (self.s - 1) * self.dilation_w - 1) // self.stride_w + 1

    def x_shape(self, n: int) -> tuple[int, ...]:
        """Shape of n images as they are stored."""
        return (n, self.c, self.h, self.w) if self.layout == "nchw" else (n, self.h, self.w, self.c)

    def y_shape(self, n: int) -> tuple[int, ...]:
        """Shape of n outputs as they are stored."""
        return (n, self.k, self.p, self.q) if self.layout == "nchw" else (n, self.p, self.q, self.k)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the filters as they are stored."""
        c = self.c // self.groups
        return (self.k, c, self.r, self.s) if self.layout == "nchw" else (self.k, self.r, self.s, c)

    @property
    def has_residual(self) -> bool:
        """Whether a pass adds an array z of y's shape."""
        return self.epilogue.startswith("bias_add")

    @property
    def activation(self) -> str:
        """The word of the function that ends its epilogue, such as relu; empty where there is none."""
        return self.epilogue.removeprefix("none").removeprefix("bias").removeprefix("_add").removeprefix("_")

    def with_n(self, n: int) -> Problem:
        """The same shape for another number of images."""
        return dataclasses.replace(self, n=n)


def epilogue_name(*, residual: bool, activation: str) -> str:
    """What an epilogue with a bias is called; `activation` is a word such as relu, or empty. Not each is there."""
    return "_".join(("bias", *(("add",) if residual else ()), *((activation,) if activation else ())))


_SIZES = tuple(field.name for field in dataclasses.fields(Problem) if field.type == "int")
_WORDS = (("dtype", DTYPES), ("layout", LAYOUTS), ("epilogue", EPILOGUES))


_INTERFACE = Interface(
    name="conv2d",
    runtime="n",
    sizes=tuple(InterfaceSize(name, None) for name in _SIZES),
    words=dict(_WORDS),
    arrays=tuple(InterfaceArray(name, "", {}, {}, optional=name in ("bias", "z")) for name in ARRAYS),
)


def _of_numbers(numbers: Sequence[int]) -> Problem:
    """The problem of the C interface's numbers."""
    words = (allowed[number] for (_, allowed), number in zip(_WORDS, numbers[len(_SIZES) :], strict=True))
    return Problem.of(numbers[: len(_SIZES)], *words)


def find_library(exported: Path | None = None) -> Path:
    """The shared library of a folder that was exported, there or in its `build`; None: of this package's folder.

    Raises FileNotFoundError with the places where it was looked for.
    """
    return interface.find_library(_INTERFACE.name, exported)


class Library(interface.Library[Problem]):
    """The shared library, loaded."""

    error_type = Conv2dError

    def __init__(self, path: str | Path | None = None) -> None:
        """Load a library; `path` None: the one that `find_library` finds.

        Raises OSError when it cannot be loaded, ImportError when it has another interface than this loader.
        """
        super().__init__(_INTERFACE, _of_numbers, path)

    def prepare(self, problem: Problem, arrays: Mapping[str, int], stream: int = 0) -> Handle:
        """Choose the kernel for a problem on the current context's device and copy filters and bias into a handle.

        `arrays` are device addresses: `w` and, where the problem has one, `bias`. Once the stream has reached this
        point they may be changed or freed, and the handle may be run on other streams. Raises Conv2dError.
        """
        return Handle(self, problem, arrays, stream)


class Handle(interface.Handle[Problem]):
    """Filters made ready for one problem's shape on one device; freed by `release` or when nothing refers to it.

    It may run on several streams at once, each with a workspace of its own.
    """

    def enqueuer(self, n: int) -> Callable[[int, int, int, int, int], None]:
        """`run` over n images in a third of its time, for networks of small layers: everything known is set up once.

        The function takes the addresses of x, y, z (0: none) and of `workspace_bytes(n)`, and the stream.
        """
        size_bytes, number = self.workspace_bytes(n), interface.int32(n)
        run, address, error = self._run, self._address, self._library.error
        arguments_type, arguments_bytes = self._library.arguments, self._library.arguments_bytes
        spare: list[ctypes.Structure] = []  # each is used by one thread at a time

        def enqueue(x: int, y: int, z: int, workspace: int, stream: int) -> None:
            try:
                arguments = spare.pop()
            except IndexError:
                arguments = arguments_type(arguments_bytes, 0, size_bytes)
            arguments.workspace, arguments.x, arguments.y, arguments.z = workspace, x, y, z
            status = run(address, number, ctypes.byref(arguments), stream)
            spare.append(arguments)
            if status:
                raise error(status)

        return enqueue
