"""An exported library in this process, by the Python package of every export; its errors are a kernel's own fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune import autotune_conv2d
from autotune.autotune_conv2d import Conv2dError, Library
from autotune.errors import Rejected
from autotune.measurement.forward import Tensors
from autotune.problem import Problem, of_conv2d
from autotune.trial import Outcome


@dataclass(frozen=True, slots=True)
class Handle:
    """Filters prepared for a problem."""

    handle: autotune_conv2d.Handle
    n: int
    workspace_bytes: int
    """of a pass over n images"""

    def run(self, tensors: Tensors, stream: int) -> None:
        """Enqueue a pass on the stream of this address. Raises Rejected."""
        try:
            self.handle.run(self.n, tensors.arrays, tensors.workspace, self.workspace_bytes, stream)
        except Conv2dError as error:
            raise _failed(error) from None


@contextmanager
def prepared(path: Path, problem: Problem, tensors: Tensors) -> Iterator[Handle]:
    """A handle of a library on the current context's device, with its weights. Raises Rejected."""
    try:
        library = Library(path)
    except (OSError, ImportError) as error:
        raise Rejected(Outcome.RUNTIME, "load_failure", f"cannot load the exported library: {error}") from None
    try:
        handle = library.prepare(library_problem(problem), tensors.arrays)
        workspace_bytes = handle.workspace_bytes(problem.runtime_size)
    except Conv2dError as error:
        raise _failed(error) from None
    try:
        yield Handle(handle, problem.runtime_size, workspace_bytes)
    finally:
        handle.release()


def library_problem(problem: Problem) -> autotune_conv2d.Problem:
    """A problem as the library's package has it."""
    return autotune_conv2d.Problem(**dataclasses.asdict(of_conv2d(problem, "an exported library")))


def _failed(error: Conv2dError) -> Rejected:
    return Rejected(Outcome.RUNTIME, "launch_failure", f"the exported library: {error}")
