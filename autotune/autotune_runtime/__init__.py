"""Run tuned kernels from Python: load a library that `autotune export` wrote and call it on GPU arrays.

This package needs only the standard library. Arrays may come from CuPy, PyTorch, PyCUDA or any library that implements
`__cuda_array_interface__`. Array shapes determine most sizes; pass all other sizes and words by name.

    import autotune_runtime

    conv = autotune_runtime.prepare(w, bias, x=x, pad_h=1, pad_w=1, epilogue="bias_relu")
    y = conv(x)

An export of another operation NAME contains this package as `autotune_NAME`. `INTERFACE` lists the arrays, sizes and
words of the library's operation. For PyTorch, `torch_operator()` returns an operator with a schema and a rule for fake
tensors (tensors without data).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from . import interface, prepared
from .c_library import CLibrary
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
    """Return the path of the shared library in an exported folder or its `build` subfolder.

    With None, search this package's own folder. Raises FileNotFoundError with the folders that were searched.
    """
    return interface.find_libraries((INTERFACE,), exported)[INTERFACE.name]


@functools.cache
def load(path: str | Path | None = None) -> Library:
    """Load a library, once per process. None stands for the library in this package's folder."""
    found = find_library() if path is None else Path(path)
    if found.suffix == interface.PLANNED:
        from .planned_library import PlannedLibrary

        return PlannedLibrary(found, INTERFACES)
    return CLibrary(found, INTERFACES)


def run(*arrays: object, library: Library | None = None, **named: object) -> object:
    """Enqueue a pass; see `prepared.run`. If `library` is None, use the one in this package's folder."""
    return prepared.run(library or load(), *arrays, **named)


def prepare(*weights: object, library: Library | None = None, **named: object) -> Prepared:
    """Prepare the operation once with these weights; see `Prepared`.

    If `library` is None, use the one in this package's folder.
    """
    return Prepared(library or load(), *weights, **named)


@functools.cache
def torch_operator(path: str | Path | None = None) -> Callable[..., object]:
    """Return a library's PyTorch operator, registered once per process.

    It takes tensors by position, and sizes and words that no shape determines by name. A convolution's operator has the
    same signature as `torch_convolution.convolution`.
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
