"""Declare operations, and the libraries whose kernels compute them. Arrays are passed as device addresses."""

from __future__ import annotations

import dataclasses
import enum
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

Number: TypeAlias = int | float
Enqueue: TypeAlias = Callable[[int, int, Sequence[Number]], None]
"""A function that enqueues a pass. Its arguments are a stream, the workspace's address, and the addresses of all arrays
in the interface's order. Scalars are passed by value.
"""
PLANNED = ".json"
"""suffix of a planned library's file (see `planned_library`)"""
SCALAR = "scalar"
"""role of a number that is passed to kernels by value"""
_FORMATS = {"f32": "f", "f64": "d", "i32": "i", "i64": "q"}  # `struct` formats of scalars


class Status(enum.IntEnum):
    """The status returned by a library function."""

    OK = 0
    BAD_PROBLEM = 1
    NULL_POINTER = 2
    MISALIGNED = 3
    SHORT_WORKSPACE = 4
    UNSUPPORTED = 5
    WRONG_DEVICE = 6
    NO_CONTEXT = 7
    OUT_OF_MEMORY = 8
    CUDA_ERROR = 9
    BAD_ARGUMENTS = 10


class LibraryError(RuntimeError):
    """A library function failed; the message is the library's own."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[LibraryError], tuple[Status, str]]:
        return (type(self), (self.status, str(self)))


@dataclass(frozen=True, slots=True)
class InterfaceSize:
    """A size of a problem."""

    name: str
    default: int | None
    """default value; None: the size is required"""


@dataclass(frozen=True, slots=True)
class InterfaceArray:
    """An array that an operation reads or writes."""

    name: str
    role: str
    axes: Mapping[str, tuple[str, ...]]
    """extents of the array as expressions, by layout; the key is empty if the operation has no layouts"""
    dtypes: Mapping[str, str]
    """element types by the values of `type_word`"""
    optional: bool
    """whether some problems lack the array"""
    type_word: str = "dtype"
    """name of the word that determines the element type"""

    @property
    def format(self) -> str:
        """The `struct` format of the array's field in `NAME_arguments`: an address, or a number for a scalar."""
        return _FORMATS[next(iter(self.dtypes.values()))] if self.role == SCALAR else "Q"


@dataclass(frozen=True, slots=True)
class Interface:
    """An operation's declaration of sizes, words and arrays, in the C interface's order."""

    name: str
    runtime: tuple[str, ...]
    """names of the sizes that are passed at run time, in the order of the C interface; other sizes are compiled in"""
    sizes: tuple[InterfaceSize, ...]
    words: Mapping[str, tuple[str, ...]]
    """allowed values of each word; the first value is the default"""
    arrays: tuple[InterfaceArray, ...]

    def problem(self, given: Mapping[str, int | str]) -> DeclaredProblem:
        """Return the problem with these sizes and words. Raises ValueError if any of them is unknown, missing or
        invalid.
        """
        names = {size.name for size in self.sizes} | self.words.keys()
        for name in given:
            if name not in names:
                raise ValueError(f"{name}: {self.name} has no such size or word; it has {', '.join(sorted(names))}")
        values: dict[str, int | str] = {}
        for size in self.sizes:
            value = given.get(size.name, size.default)
            if not isinstance(value, int):
                raise ValueError(
                    f"{size.name}: expected a whole number" if size.name in given else f"{size.name}: missing"
                )
            values[size.name] = value
        for name, words in self.words.items():
            values[name] = given.get(name, words[0])
            if values[name] not in words:
                raise ValueError(f"{name} = {values[name]!r}: expected one of {', '.join(words)}")
        return DeclaredProblem(self, values)

    def of_numbers(self, numbers: Sequence[int]) -> DeclaredProblem:
        """Return the problem with these numbers, as stored in the C interface."""
        sizes = {size.name: number for size, number in zip(self.sizes, numbers, strict=False)}
        words = zip(self.words.items(), numbers[len(sizes) :], strict=True)
        return DeclaredProblem(self, {**sizes, **{name: allowed[number] for (name, allowed), number in words}})


@dataclass(frozen=True)
class DeclaredProblem:
    """One of an operation's problems."""

    interface: Interface
    values: Mapping[str, int | str]
    """values of all sizes and words"""

    @property
    def runtime_sizes(self) -> tuple[int, ...]:
        """The sizes passed at run time."""
        return tuple(int(self.values[name]) for name in self.interface.runtime)

    def with_runtime(self, *sizes: int) -> DeclaredProblem:
        """Return the same problem with other run-time sizes."""
        return DeclaredProblem(self.interface, {**self.values, **dict(zip(self.interface.runtime, sizes, strict=True))})

    @property
    def is_empty(self) -> bool:
        """Whether a run-time size is 0, so that there is nothing to run."""
        return 0 in self.runtime_sizes

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in the problem's fields in the C interface."""
        sizes = (int(self.values[size.name]) for size in self.interface.sizes)
        words = (allowed.index(str(self.values[name])) for name, allowed in self.interface.words.items())
        return (*sizes, *words)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in a library, and the problem that it was tuned for."""

    name: str
    """name of the kernel, in the form study.layer"""
    problem: DeclaredProblem
    """the problem that the kernel was tuned for; other run-time sizes work, too"""
    accuracy: str
    """fp64, fp32, fp32-3xtf32, tf32, fp16, fp16-acc16 or bf16"""
    deterministic: bool
    device: str
    """name of the device that the kernel was tuned on"""
    median_us: float
    """median time of a pass on that device"""
    constant_weights: bool = False
    """whether the kernel reads weights from constant memory, so a pass without prepared weights fills it first"""


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The shape and type of one of a problem's arrays."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    """the last extent is contiguous"""
    size_bytes: int


def int32(number: int) -> int:
    """Return a number that fits into 32 bits. Raises ValueError for others, which ctypes would truncate."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is too large for the library, whose sizes have 32 bits")
    return number


def find_libraries(interfaces: Sequence[Interface], exported: Path | None = None) -> dict[str, Path]:
    """Find the shared libraries in an exported folder (None: this package's folder), by operation.

    A library is in the exported folder, in a subfolder with the operation's name, or in a `build` folder in one of
    these. With None, the folder with the operation's name is next to this package's export. Raises FileNotFoundError if
    there is no library.
    """
    package = Path(__file__).resolve().parent
    own = package.parent.parent
    places = [package, package.parent, own, own / "build"] if exported is None else [exported, exported / "build"]
    of_several = own.parent if exported is None else exported
    libraries: dict[str, Path] = {}
    for name in (interface.name for interface in interfaces):
        folders = (*places, of_several / name, of_several / name / "build")
        files = (folder / f"lib{name}{suffix}" for folder in folders for suffix in (".so", PLANNED))
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            libraries[name] = file
    if not libraries:
        names = " or ".join(f"lib{interface.name}.so" for interface in interfaces)
        raise FileNotFoundError(
            f"no {names} in {', '.join(map(str, places))}; build it (see README.md there), or give its path"
        )
    return libraries


class PreparedKernel(Protocol):
    """A kernel with weights, prepared for one shape on one device."""

    kernel_name: str
    """name of the kernel, in the form study.layer"""

    def workspace_bytes(self, *sizes: int) -> int:
        """Return the number of workspace bytes that a pass with these run-time sizes needs.

        Raises LibraryError if the kernel doesn't support the sizes.
        """

    def enqueuer(self, *sizes: int) -> Enqueue:
        """Return a function that enqueues a pass with these run-time sizes and raises LibraryError.

        The workspace must have `workspace_bytes(*sizes)` bytes. For an array that a launch doesn't use, pass 0 as the
        address. The returned function neither allocates nor synchronizes, so CUDA graphs can capture it. Everything
        that is the same for all passes is looked up in advance, because host overhead limits small layers.
        """

    def release(self) -> None:
        """Wait until the device has finished with the kernel, then free it. It must not run again."""


class Library(ABC):
    """The kernels of one operation."""

    path: Path
    interface: Interface
    version: str
    """name and version of the program that wrote the library, such as `autotune 0.1.0`"""

    @abstractmethod
    def kernels(self) -> tuple[Kernel, ...]:
        """Return all kernels of the library."""

    @abstractmethod
    def kernel_name(self, problem: DeclaredProblem) -> str | None:
        """Return the name of a problem's kernel on the current context's device, or None if there is no kernel."""

    @abstractmethod
    def workspace_bytes(self, problem: DeclaredProblem) -> int:
        """Return the number of workspace bytes that a pass needs on the current context's device.

        Raises LibraryError if there is no kernel for the problem.
        """

    @abstractmethod
    def prepared(self, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int) -> PreparedKernel:
        """Choose a problem's kernel on the current context's device and copy the weights.

        `arrays` are device addresses. Raises LibraryError.
        """

    @abstractmethod
    def enqueuer(self, problem: DeclaredProblem, workspace_bytes: int) -> Enqueue:
        """Return a function that enqueues a pass for a problem, with weights as arguments like all other arrays.

        The workspace must have `workspace_bytes(problem)` bytes. The returned function raises LibraryError.
        """

    def forward(
        self,
        problem: DeclaredProblem,
        arrays: Mapping[str, Number],
        workspace: int = 0,
        workspace_bytes: int = 0,
        stream: int = 0,
    ) -> None:
        """Enqueue a pass without a handle. `arrays` contains addresses and scalars by name. Raises LibraryError."""
        addresses = [arrays.get(array.name, 0) for array in self.interface.arrays]
        self.enqueuer(problem, workspace_bytes)(stream, workspace, addresses)

    def array_shapes(self, problem: DeclaredProblem) -> tuple[ArrayShape, ...]:
        """Return a problem's arrays. Its run-time sizes may be 0. Raises LibraryError for an invalid problem."""
        if not problem.is_empty:
            return self._array_shapes(problem)
        layout = str(problem.values.get("layout", ""))
        empty = [name for name in self.interface.runtime if problem.values[name] == 0]
        axes = {array.name: array.axes[layout] for array in self.interface.arrays}
        return tuple(
            dataclasses.replace(
                array,
                shape=tuple(
                    0 if axis in empty else extent for axis, extent in zip(axes[array.name], array.shape, strict=True)
                ),
            )
            for array in self._array_shapes(problem.with_runtime(*(max(1, size) for size in problem.runtime_sizes)))
        )

    @abstractmethod
    def _array_shapes(self, problem: DeclaredProblem) -> tuple[ArrayShape, ...]:
        """Return the arrays of a problem whose run-time sizes are not 0. Raises LibraryError for an invalid problem."""


class Handle:
    """A kernel with weights, prepared for one shape on one device. It is freed by `release` or when it is deleted.

    A handle can run on several streams at once, each with its own workspace.
    """

    def __init__(self, library: Library, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int = 0) -> None:
        """Choose a problem's kernel on the current context's device and copy the weights.

        `arrays` are device addresses. Once the stream has reached this point, the caller may change or free the
        weights, and the handle can run on other streams. Raises LibraryError.
        """
        prepared = library.prepared(problem, arrays, stream)
        self.kernel_name = prepared.kernel_name
        """name of the kernel, in the form study.layer"""
        self.workspace_bytes, self.enqueuer = prepared.workspace_bytes, prepared.enqueuer
        """as in PreparedKernel"""
        # Freeing waits for the device. Do not free at exit: the driver may already be gone.
        self._free = weakref.finalize(self, prepared.release)
        self._free.atexit = False

    def release(self) -> None:
        """Wait until the device has finished with the handle, then free it. It must not run again."""
        self._free()
