"""Run an exported library in this process, through the Python package that every export contains.

Errors in the library are treated as errors of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.autotune_runtime import interface
from autotune.autotune_runtime.c_library import CLibrary
from autotune.autotune_runtime.interface import Enqueue, Interface, InterfaceArray, InterfaceSize, LibraryError
from autotune.errors import Rejected
from autotune.measurement.launcher import Tensors
from autotune.operation.operation import Operation
from autotune.problem import Problem
from autotune.trial import Outcome


@dataclass(frozen=True, slots=True)
class Handle:
    """An exported library's handle, with weights prepared for a problem."""

    enqueue: Enqueue
    names: tuple[str, ...]
    """names of the arrays, in the library's order"""
    workspace_bytes: int
    """workspace of a forward pass, bytes"""

    def run(self, tensors: Tensors, stream: int) -> None:
        """Enqueue a forward pass on the stream with this address. Raises Rejected if the library fails."""
        try:
            self.enqueue(stream, tensors.workspace, [tensors.arrays.get(name, 0) for name in self.names])
        except LibraryError as error:
            raise _failed(error) from None


@contextmanager
def prepared(path: Path, problem: Problem, tensors: Tensors) -> Iterator[Handle]:
    """Load a library on the current context's device and yield a handle with prepared weights.

    Raises Rejected if the library can't be loaded or fails.
    """
    declared = problem.operation
    asked = interface_of(declared).problem(dict(problem.values))
    try:
        library = CLibrary(path, (asked.interface,))
    except (OSError, ImportError) as error:
        raise Rejected(Outcome.RUNTIME, "load_failure", f"cannot load the exported library: {error}") from None
    try:
        handle = interface.Handle(library, asked, tensors.arrays)
        workspace_bytes = handle.workspace_bytes(*problem.runtime_sizes)
        enqueue = handle.enqueuer(*problem.runtime_sizes)
    except LibraryError as error:
        raise _failed(error) from None
    try:
        yield Handle(enqueue, tuple(array.name for array in declared.arrays), workspace_bytes)
    finally:
        handle.release()


def interface_of(declared: Operation) -> Interface:
    """Return an operation's declaration in the form used by an export's Python package."""
    return Interface(
        name=declared.name,
        runtime=declared.runtime,
        sizes=tuple(InterfaceSize(size.name, size.default) for size in declared.sizes),
        words=dict(declared.words),
        arrays=tuple(
            InterfaceArray(
                name=array.name,
                role=array.role,
                axes={
                    layout: tuple(extent.expression.text for extent in extents)
                    for layout, extents in array.shapes.items()
                },
                dtypes=dict(array.dtypes),
                optional=array.when.expression.text != "true",
                type_word=array.type_word,
            )
            for array in declared.arrays
        ),
    )


def problem_numbers(problem: Problem) -> tuple[int, ...]:
    """Return a problem as in the C interface: the sizes, followed by the position of each word."""
    return interface_of(problem.operation).problem(dict(problem.values)).numbers


def _failed(error: LibraryError) -> Rejected:
    return Rejected(Outcome.RUNTIME, "launch_failure", f"the exported library: {error}")
