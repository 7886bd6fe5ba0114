"""An exported library in this process: its C interface (`templates/export/autotune_conv2d.h`) through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import Rejected
from autotune.forward import Tensors
from autotune.problem import DTYPES, EPILOGUES, LAYOUTS, SIZE_NAMES, Conv2dProblem
from autotune.trial import Outcome

ABI_VERSION = 1


class _Problem(ctypes.Structure):
    """conv2d_problem."""

    _fields_ = tuple((name, ctypes.c_int32) for name in (*SIZE_NAMES, "dtype", "layout", "epilogue"))


@dataclass(frozen=True, slots=True)
class Handle:
    """Filters prepared for a problem's shape."""

    library: ExportedLibrary
    address: int
    n: int
    workspace_bytes: int
    """of a pass over n images"""

    def run(self, tensors: Tensors) -> None:
        """Enqueue a pass on the default stream."""
        self.library.call(
            "conv2d_run",
            *(
                ctypes.c_void_p(self.address),
                ctypes.c_int32(self.n),
                ctypes.c_void_p(tensors.x),
                ctypes.c_void_p(tensors.y),
            ),
            *(ctypes.c_void_p(tensors.workspace), ctypes.c_uint64(self.workspace_bytes), None),
        )


class ExportedLibrary:
    """A shared library that `autotune export` wrote the source of."""

    def __init__(self, path: Path) -> None:
        """Raises Rejected when it cannot be loaded or has another interface."""
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Rejected(Outcome.RUNTIME, "load_failure", f"cannot load the exported library: {error}") from None
        for name in ("conv2d_status_text", "conv2d_last_error"):
            getattr(self._library, name).restype = ctypes.c_char_p
        version = self._library.conv2d_abi_version()
        if version != ABI_VERSION:
            message = f"{path} has version {version} of the interface, not {ABI_VERSION}"
            raise Rejected(Outcome.RUNTIME, "load_failure", message)

    @contextmanager
    def prepare(self, problem: Conv2dProblem, w: int, bias: int) -> Iterator[Handle]:
        """A handle on the current context's device; w and bias are device addresses, not needed once this returns."""
        given = _Problem(*problem_numbers(problem))
        handle, workspace_bytes = ctypes.c_void_p(), ctypes.c_uint64()
        pointers = (ctypes.c_void_p(w), ctypes.c_void_p(bias))
        self.call("conv2d_prepare", ctypes.byref(given), *pointers, None, ctypes.byref(handle))
        try:
            n = ctypes.c_int32(problem.n)
            self.call("conv2d_handle_workspace_size", handle, n, ctypes.byref(workspace_bytes))
            yield Handle(self, handle.value or 0, problem.n, workspace_bytes.value)
        finally:
            self.call("conv2d_release", handle)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a status. Raises Rejected with its words when it is not ok."""
        status = getattr(self._library, name)(*arguments)
        if status:
            words = self._library.conv2d_status_text(status).decode()
            more = self._library.conv2d_last_error().decode()
            message = f"{name}: {words}" + (f" ({more})" if more else "")
            raise Rejected(Outcome.RUNTIME, "launch_failure", message)


def problem_numbers(problem: Conv2dProblem) -> tuple[int, ...]:
    """The fields of the C interface's conv2d_problem."""
    sizes = tuple(int(getattr(problem, name)) for name in SIZE_NAMES)
    words = ((problem.dtype, DTYPES), (problem.layout, LAYOUTS), (problem.epilogue, EPILOGUES))
    return (*sizes, *(allowed.index(word) for word, allowed in words))
