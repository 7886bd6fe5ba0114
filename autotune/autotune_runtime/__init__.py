"""Tuned kernels from Python: the library that `autotune export` wrote, on arrays on a GPU.

It needs only the standard library. Arrays may come from CuPy, PyTorch, PyCUDA or any library that has
`__cuda_array_interface__` or `__dlpack__`. Sizes come from their shapes; all other sizes and words are given by name.

    import autotune_runtime

    conv = autotune_runtime.prepare(w, bias, x=x, pad_h=1, pad_w=1, epilogue="bias_relu")
    y = conv(x)

The package in an export of another operation NAME is called `autotune_NAME`. `INTERFACE` lists the arrays, sizes and
words of the library's operation. For PyTorch, `torch_operator()` is an operator with a schema and a rule for tensors
without data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from . import interface, prepared
from .declared import INTERFACE, INTERFACES
from .interface import Handle, Kernel, Library, LibraryError, Status
from .prepared import Prepared

__all__ = [
    "INTERFACE",
    "Handle",
    "Kernel",
    "Library",
    "LibraryError",
    "Prepared",
    "Status",
    "find_library",
    "load",
    "prepare",
    "problem",
    "run",
    "torch_operator",
]

problem = INTERFACE.problem
_CONVOLUTIONS = ("conv2d", "conv", "conv_transpose")


def find_library(exported: Path | None = None) -> Path:
    """The shared library of a folder that was exported, there or in its `build`; None: of this package's folder.

    Raises FileNotFoundError with the places where it was not found.
    """
    return interface.find_libraries((INTERFACE,), exported)[INTERFACE.name]


@functools.cache
def load(path: str | Path | None = None) -> Library:
    """The library, loaded once in a process; None: the one in the folder of this package."""
    return Library(find_library() if path is None else path, INTERFACES)


def run(*arrays: object, library: Library | None = None, **named: object) -> object:
    """Enqueue a pass; see `prepared.run`. `library` None: the one in the folder of this package."""
    return prepared.run(library or load(), *arrays, **named)


def prepare(*weights: object, library: Library | None = None, **named: object) -> Prepared:
    """The operation with these weights, prepared once; see `Prepared`. `library` None: the one in the folder of this
    package.
    """
    return Prepared(library or load(), *weights, **named)


@functools.cache
def torch_operator(path: str | Path | None = None) -> Callable[..., object]:
    """The operator for PyTorch, registered once in a process. It takes tensors, and by name the sizes and words that no
    shape determines; that of a convolution has the signature of `torch_convolution.convolution`.
    """
    if len(INTERFACES) > 1 and INTERFACE.name in _CONVOLUTIONS:
        from .torch_convolution import convolution

        return functools.partial(convolution, library=load(path).path)
    return _operator()(load(path))


@functools.cache
def _operator() -> Callable[[Library], Callable[..., object]]:
    if len(INTERFACES) > 1:
        from .torch_plain import OPERATORS

        if INTERFACE.name in OPERATORS:
            return OPERATORS[INTERFACE.name].of
    from .torch_operator import Operator

    return Operator(INTERFACE, INTERFACE.name).of
