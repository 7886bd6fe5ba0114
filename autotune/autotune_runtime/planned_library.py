"""A library without C++: compiled kernels, and a JSON file with their launch plans.

autotune writes such libraries for networks that it converts without tuning, because they need no C++ compiler.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock

from . import driver
from .arrays import element_bytes
from .driver import DriverError, Memory, Module
from .interface import (
    ArrayShape,
    DeclaredProblem,
    Enqueue,
    Interface,
    Kernel,
    Library,
    LibraryError,
    Number,
    Status,
    int32,
)
from .planned_launches import (
    DeviceLimits,
    Launches,
    Plan,
    evaluate,
    launches_of,
    number,
    plan_of,
)
from .planned_pass import enqueuer, pass_bytes

WEIGHTS, PACKED_W = "weights", "packed_w"  # a role of arrays, and the name of weights in a kernel's own order
DEPENDENT_LAUNCH = "AUTOTUNE_DEPENDENT_LAUNCH"
"""The environment variable that lets kernels start before preceding kernels have ended, if it is 1."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the expressions of an operation's plans need in addition to its interface."""

    parts: Mapping[str, tuple[str, Mapping[str, str]]]
    """each part's word, and the part's value by the word's value"""
    derived: Mapping[str, str]
    """derived values as expressions, each after the values that it uses"""
    rules: tuple[str, ...]
    """conditions that a problem must meet"""
    arrays: Mapping[str, str]
    """conditions under which a problem has an array, by name"""

    def names(self, problem: DeclaredProblem) -> dict[str, object]:
        """Return the values of a problem that expressions use, by name."""
        names: dict[str, object] = dict(problem.values)
        names |= {part: of[str(names[word])] for part, (word, of) in self.parts.items()}
        for name, text in self.derived.items():
            names[name] = evaluate(text, names)
        return names


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """A kernel in a planned library."""

    about: Kernel
    image: bytes
    """the compiled program"""
    entries: tuple[str, ...]
    constants: tuple[tuple[str, str], ...]
    """names of `__constant__` arrays, each with the array that it is filled from"""
    dependent: bool
    """whether the kernel waits for preceding kernels itself, so that it may start before they have ended"""
    overlaps: bool
    """whether this is true of the stages after the first"""
    plan: Plan

    def has_shape_of(self, problem: DeclaredProblem) -> bool:
        """Return whether the kernel's problem differs from another one only in run-time sizes."""
        return self.about.problem.with_runtime(*problem.runtime_sizes) == problem

    def launches(self, names: Mapping[str, object], problem: DeclaredProblem, device: DeviceLimits) -> Launches:
        """Return the launches of a problem of the kernel's shape. Raises LibraryError."""
        sizes = zip(problem.runtime_sizes, self.about.problem.runtime_sizes, strict=True)
        made = launches_of(self.plan, names, device, larger=any(size > tuned for size, tuned in sizes))
        early = self.dependent and os.environ.get(DEPENDENT_LAUNCH) == "1"
        overlaps = self.overlaps and device.arch >= 90
        stages = (replace(stage, early=early or (overlaps and at > 0)) for at, stage in enumerate(made.stages))
        return replace(made, stages=tuple(stages))


class PlannedLibrary(Library):
    """A library in a JSON file, next to its kernels."""

    def __init__(self, path: str | Path, interfaces: Sequence[Interface]) -> None:
        """Read a library for one of the operations in `interfaces`."""
        self.path = Path(path).resolve()
        read = json.loads(self.path.read_text(encoding="utf-8"))
        self.interface = interface = next(each for each in interfaces if each.name == read["operation"])
        self._declaration = Declaration(**read["declaration"])
        self._kernels = tuple(
            PlannedKernel(
                **{
                    **each,
                    "about": Kernel(**{**each["about"], "problem": interface.problem(each["about"]["problem"])}),
                    "image": (self.path.parent / each["image"]).read_bytes(),
                    "plan": plan_of(each["plan"]),
                }
            )
            for each in read["kernels"]
        )
        self.version = read["version"]
        self._modules: dict[tuple[int, bytes], Module] = {}
        self._loading = Lock()

    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(kernel.about for kernel in self._kernels)

    def kernel_name(self, problem: DeclaredProblem) -> str | None:
        try:
            return self._choose(problem)[0].about.name
        except LibraryError:
            return None

    def workspace_bytes(self, problem: DeclaredProblem) -> int:
        return pass_bytes(self._choose(problem)[1])

    def prepared(self, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int) -> PlannedHandle:
        kernel, launches = self._choose(problem)
        return PlannedHandle(self, kernel, launches, problem, arrays, stream)

    def enqueuer(self, problem: DeclaredProblem, workspace_bytes: int) -> Enqueue:
        kernel, launches = self._choose(problem)
        if workspace_bytes < pass_bytes(launches):
            raise LibraryError(Status.SHORT_WORKSPACE, f"the workspace has less than {pass_bytes(launches)} bytes")
        arrays, sizes = self.interface.arrays, runtime_sizes(problem)

        def enqueue(stream: int, workspace: int, addresses: Sequence[Number]) -> None:
            prepare(stream, workspace, addresses)
            forward(stream, workspace, addresses)

        def fill_constants(stream: int, workspace: int, addresses: Sequence[Number]) -> None:
            weights = {array.name: int(address) for array, address in zip(arrays, addresses, strict=True)}
            handle = self.prepared(problem, weights, stream)  # with constants of its own
            handle.enqueuer(*problem.runtime_sizes)(stream, workspace, addresses)
            handle.release()

        if kernel.constants:
            return fill_constants
        with self._loading:
            which = driver.current_context(), kernel.image
            module = self._modules.get(which)
            if module is None:
                module = self._modules[which] = Module(kernel.image)
            prepare = enqueuer(module, kernel.entries, launches.preparation, arrays, sizes, {})
            forward = enqueuer(module, kernel.entries, launches, arrays, sizes, {})
        return enqueue if launches.prepare else forward

    def _array_shapes(self, problem: DeclaredProblem) -> tuple[ArrayShape, ...]:
        names = self.valid_names(problem)
        layout = str(problem.values.get("layout", ""))
        shapes = []
        for array in self.interface.arrays:
            if evaluate(self._declaration.arrays[array.name], names):
                shape = tuple(number(extent, names) for extent in array.axes[layout])
                dtype = array.dtypes[str(names[array.type_word])]
                size_bytes = element_bytes(dtype) * math.prod(shape)
                shapes.append(ArrayShape(array.name, array.role, dtype, shape, size_bytes))
        return tuple(shapes)

    def valid_names(self, problem: DeclaredProblem) -> dict[str, object]:
        """Return a problem's values, by name. Raises LibraryError if it is invalid, ValueError if a size is too large
        for 32 bits.
        """
        for size in problem.numbers:
            int32(size)
        names = self._declaration.names(problem)
        if not all(evaluate(rule, names) for rule in self._declaration.rules):
            name = self.interface.name
            raise LibraryError(Status.BAD_PROBLEM, f"invalid problem of {name}: sizes do not fit each other")
        return names

    def _choose(self, problem: DeclaredProblem) -> tuple[PlannedKernel, Launches]:
        """Return the kernel for a problem on the current context's device, and its launches. Raises LibraryError.

        If a shape has several kernels, the one tuned for the most similar run-time sizes comes first.
        """
        names, device = self.valid_names(problem), current_device()
        error = LibraryError(Status.UNSUPPORTED, "the library has no kernel for this shape")
        units = math.prod(problem.runtime_sizes)

        def distance(kernel: PlannedKernel) -> float:
            return abs(math.log(units / math.prod(kernel.about.problem.runtime_sizes)))

        for kernel in sorted((each for each in self._kernels if each.has_shape_of(problem)), key=distance):
            try:
                return kernel, kernel.launches(names, problem, device)
            except LibraryError as why_not:
                error = LibraryError(why_not.status, f"{kernel.about.name}: {why_not}")
        raise error


class PlannedHandle:
    """A planned library's kernel with its own copies of the weights."""

    def __init__(
        self,
        library: PlannedLibrary,
        kernel: PlannedKernel,
        launches: Launches,
        problem: DeclaredProblem,
        arrays: Mapping[str, int],
        stream: int,
    ) -> None:
        """Load the kernel and enqueue the preparation of weights, given as device addresses."""
        self.kernel_name = kernel.about.name
        self._library, self._kernel, self._problem = library, kernel, problem
        self._device, self._context = current_device(), driver.current_context()
        self._module = Module(kernel.image)
        weights = {each.name: each.size_bytes for each in library.array_shapes(problem) if each.role == WEIGHTS}
        given = {name: arrays[name] for name in weights}
        self._held = {name: Memory(size_bytes) for name, size_bytes in weights.items() if launches.takes(name)}
        for name, memory in self._held.items():
            driver.copy(memory.address, given[name], memory.size_bytes, stream)
        if launches.packed_w_bytes:
            memory = self._held[PACKED_W] = Memory(launches.packed_w_bytes)
            given[PACKED_W], weights[PACKED_W] = memory.address, memory.size_bytes
        self._enqueuer(launches.preparation, problem, given)(stream, 0, [0] * len(library.interface.arrays))
        for name, origin in kernel.constants:
            if origin in given:
                address, size_bytes = self._module.constant(name)
                driver.copy(address, given[origin], min(size_bytes, weights[origin]), stream)

    def workspace_bytes(self, *sizes: int) -> int:
        return self._launches(self._problem.with_runtime(*sizes)).workspace_bytes

    def enqueuer(self, *sizes: int) -> Enqueue:
        problem = self._problem.with_runtime(*sizes)
        fixed = {name: memory.address for name, memory in self._held.items()}
        return self._enqueuer(self._launches(problem), problem, fixed)

    def _launches(self, problem: DeclaredProblem) -> Launches:
        return self._kernel.launches(self._library.valid_names(problem), problem, self._device)

    def _enqueuer(self, launches: Launches, problem: DeclaredProblem, fixed: Mapping[str, int]) -> Enqueue:
        arrays = self._library.interface.arrays
        return enqueuer(self._module, self._kernel.entries, launches, arrays, runtime_sizes(problem), fixed)

    def release(self) -> None:
        with suppress(DriverError), driver.current(self._context):
            driver.call("cuCtxSynchronize")
            self._module.unload()
            for memory in self._held.values():
                memory.free()


def runtime_sizes(problem: DeclaredProblem) -> dict[str, int]:
    """Return a problem's run-time sizes by name."""
    return dict(zip(problem.interface.runtime, problem.runtime_sizes, strict=True))


def current_device() -> DeviceLimits:
    """Return the limits of the current context's device. Raises LibraryError if there is no driver or no context."""
    number = ctypes.c_int()
    try:
        driver.call("cuCtxGetDevice", ctypes.byref(number))
    except (OSError, DriverError):
        raise LibraryError(Status.NO_CONTEXT, "no NVIDIA driver, or the calling thread has no CUDA context") from None
    return _limits(number.value)


@cache
def _limits(device: int) -> DeviceLimits:
    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    major, minor, sm_count, smem, l2, threads = (attribute(number) for number in (75, 76, 16, 97, 38, 1))
    grid, block = (tuple(attribute(first + axis) for axis in range(3)) for first in (5, 2))
    return DeviceLimits(10 * major + minor, sm_count, smem, l2, threads, grid, block)
