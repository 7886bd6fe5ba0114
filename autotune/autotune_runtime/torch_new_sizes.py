"""Build kernels in the background for image sizes that a network without a library meets after its conversion."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import load
from .interface import DeclaredProblem
from .torch_call import Call, usable_kernel
from .untuned_build import BuildFailed, UntunedBuild

MOST = 8
"""Maximum number of sizes for which a network gets kernels after its conversion."""


@dataclass(frozen=True, slots=True, eq=False)
class NewProblem:
    """A layer's problem at a new size of images."""

    operation: str
    values: Mapping[str, int | str]


@dataclass(slots=True)
class _Size:
    """A size of images: the problems without kernels of a pass through the network."""

    first_pass: int
    problems: dict[Hashable, NewProblem] = field(default_factory=dict)
    build: UntunedBuild | None = None
    is_final: bool = False
    """whether no more kernels will be built for the size"""


class NewSizes:
    """The new sizes of a converted network's images. A size gets kernels when it occurs for the second time."""

    def __init__(self, begin: Callable[[Sequence[NewProblem]], UntunedBuild]) -> None:
        """`begin` begins to build libraries for problems."""
        self._begin = begin
        self._lock = threading.Lock()
        self._pass = 0
        self._layers: set[int] = set()
        """ids of the first weights of the layers that have run in this pass"""
        self._sizes: dict[Hashable, _Size] = {}
        """sizes by problem"""
        self._now = _Size(self._pass)
        self._builds: list[UntunedBuild] = []
        self._folders: list[Path] = []

    def serve(self, call: Call, problem: DeclaredProblem, layer: int, *, capturing: bool) -> Call | None:
        """Return a call with a library that has a kernel for its problem, or None if PyTorch computes it for now.

        If no library will ever have a kernel, the call is returned unchanged. `layer` is the id of the first weight, or
        0 if there is none. During a capture, nothing is built and no new library is used.
        """
        if _has_kernel(call, problem):
            return call
        if capturing:
            return None
        key = call.library.interface.name, problem.with_runtime(*(1 for _ in problem.runtime_sizes)).numbers
        with self._lock:
            size = self._size_of(key, problem, layer)
            if size.build is not None and size.build.done() and not size.is_final:
                self._finish(size, size.build)
            for folder in self._folders:
                served = replace(call, path=str(folder / Path(call.path).name))
                if Path(served.path).is_file() and _has_kernel(served, problem):
                    return served
        return call if size.is_final else None

    def _size_of(self, key: Hashable, problem: DeclaredProblem, layer: int) -> _Size:
        """Return the size that a problem belongs to. If the problem occurs in a second pass, begin to build its size's
        kernels. A pass ends when one of its layers runs again.
        """
        is_full = len(self._builds) == MOST
        if layer in self._layers:
            self._pass += 1
            self._layers.clear()
            self._now = _Size(self._pass, is_final=is_full)
        if layer:
            self._layers.add(layer)
        size = self._sizes.get(key)
        if size is None:
            if self._now.build is not None:
                self._now = _Size(self._pass, is_final=is_full)
            size = self._now if is_full else self._sizes.setdefault(key, self._now)
        elif size.build is None and size.first_pass < self._pass and all(build.done() for build in self._builds):
            size.is_final = is_full
            if not is_full:
                self._begin_build(size)
        if size.build is None:
            size.problems[key] = NewProblem(problem.interface.name, problem.values)
        return size

    def _begin_build(self, size: _Size) -> None:
        try:
            size.build = self._begin(tuple(size.problems.values()))
        except OSError as error:
            size.is_final = True
            warnings.warn(f"{error}; PyTorch runs images of a new size", RuntimeWarning, stacklevel=2)
        else:
            self._builds.append(size.build)

    def _finish(self, size: _Size, build: UntunedBuild) -> None:
        """Use a build's libraries from now on, or issue a warning if the build failed."""
        size.is_final = True
        try:
            kernels = build.wait()
        except BuildFailed as error:
            warnings.warn(f"{error}; PyTorch runs images of a new size", RuntimeWarning, stacklevel=2)
            return
        self._folders.append(build.folder)
        count = "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
        print(f"autotune: compiled {count} for images of a new size", file=sys.stderr)


def _has_kernel(call: Call, problem: DeclaredProblem) -> bool:
    return bool(usable_kernel(load(call.path), problem, tf32=True)[0])
