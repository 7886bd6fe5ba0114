"""The C interface of an exported library in Python, for any operation. Arrays are device addresses here."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ABI_VERSION = 2


Number: TypeAlias = int | float
Enqueue: TypeAlias = Callable[[int, int, Sequence[Number]], None]
"""A function of a stream, the address of a workspace, and the addresses of all arrays in the order of the interface; of
a scalar its value."""
SCALAR = "scalar"
"""role of a number that kernels take by value"""
_FORMATS = {"f32": "f", "f64": "d", "i32": "i", "i64": "q"}  # of scalars, in a struct


class Status(enum.IntEnum):
    """The status of a call of the library."""

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
    """The library refused a call; the message is the library's."""

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
    """None: required"""


@dataclass(frozen=True, slots=True)
class InterfaceArray:
    """An array of a call."""

    name: str
    role: str
    axes: Mapping[str, tuple[str, ...]]
    """its extents as expressions, by layout; under an empty name if the operation has no layouts"""
    dtypes: Mapping[str, str]
    """element type, by the values of a word"""
    optional: bool
    """whether some problems lack it"""
    type_word: str = "dtype"
    """that word"""

    @property
    def format(self) -> str:
        """Its part of NAME_arguments, for `struct`: an address, or a number of its type."""
        return _FORMATS[next(iter(self.dtypes.values()))] if self.role == SCALAR else "Q"


@dataclass(frozen=True, slots=True)
class Interface:
    """An operation's declaration of its problems and their arrays, in the order of the C interface."""

    name: str
    runtime: tuple[str, ...]
    """the sizes that are given at run time, in the order of the C interface; all others are compiled in"""
    sizes: tuple[InterfaceSize, ...]
    words: Mapping[str, tuple[str, ...]]
    """the values of each enumeration; the first is the default"""
    arrays: tuple[InterfaceArray, ...]

    def problem(self, given: Mapping[str, int | str]) -> DeclaredProblem:
        """The problem of these sizes and words. Raises ValueError for one that is unknown or missing."""
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
        """The problem with these numbers of the C interface."""
        sizes = {size.name: number for size, number in zip(self.sizes, numbers, strict=False)}
        words = zip(self.words.items(), numbers[len(sizes) :], strict=True)
        return DeclaredProblem(self, {**sizes, **{name: allowed[number] for (name, allowed), number in words}})


@dataclass(frozen=True)
class DeclaredProblem:
    """A problem of an operation."""

    interface: Interface
    values: Mapping[str, int | str]
    """every size and word"""

    @property
    def runtime_sizes(self) -> tuple[int, ...]:
        """The sizes that are given at run time."""
        return tuple(int(self.values[name]) for name in self.interface.runtime)

    def with_runtime(self, *sizes: int) -> DeclaredProblem:
        """The same problem with other run-time sizes."""
        return DeclaredProblem(self.interface, {**self.values, **dict(zip(self.interface.runtime, sizes, strict=True))})

    @property
    def is_empty(self) -> bool:
        """Whether a run-time size is 0, so that there is nothing to run."""
        return 0 in self.runtime_sizes

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields of the C interface's problem."""
        sizes = (int(self.values[size.name]) for size in self.interface.sizes)
        words = (allowed.index(str(self.values[name])) for name, allowed in self.interface.words.items())
        return (*sizes, *words)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the library and the problem it was tuned for."""

    name: str
    """study.layer"""
    problem: DeclaredProblem
    """the problem it was tuned for; it also runs other run-time sizes"""
    accuracy: str
    """fp64, fp32, fp32-3xtf32, tf32, fp16, fp16-acc16 or bf16"""
    deterministic: bool
    device: str
    """name of the device it was tuned on"""
    median_us: float
    """time of a pass there"""


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array of a problem."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    """the last extent is contiguous"""
    size_bytes: int


def int32(number: int) -> int:
    """The number. Raises ValueError if it has more than 32 bits, which ctypes would cut off."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is too large for the library, whose sizes have 32 bits")
    return number


class _Array(ctypes.Structure):
    """NAME_array."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("size_bytes", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8),
    )


def find_libraries(interfaces: Sequence[Interface], exported: Path | None = None) -> dict[str, Path]:
    """The shared libraries of a folder that was exported, by operation; None: of this package's folder.

    They are in the folder or in its `build`, or in a folder of the operation's name in it, or for None next to it.
    Raises FileNotFoundError if there is none.
    """
    package = Path(__file__).resolve().parent
    own = package.parent.parent
    places = [package, package.parent, own, own / "build"] if exported is None else [exported, exported / "build"]
    of_several = own.parent if exported is None else exported
    libraries: dict[str, Path] = {}
    for name in (interface.name for interface in interfaces):
        folders = (*places, of_several / name, of_several / name / "build")
        file = next((folder / f"lib{name}.so" for folder in folders if (folder / f"lib{name}.so").is_file()), None)
        if file is not None:
            libraries[name] = file
    if not libraries:
        names = " or ".join(f"lib{interface.name}.so" for interface in interfaces)
        raise FileNotFoundError(
            f"no {names} in {', '.join(map(str, places))}; build it (see README.md there), or give its path"
        )
    return libraries


class Library:
    """The shared library, loaded."""

    def __init__(self, path: str | Path, interfaces: Sequence[Interface]) -> None:
        """Load the library of one of several operations.

        Raises OSError if it cannot be loaded, ImportError if it has another interface than this loader.
        """
        self.path = Path(path).resolve()
        self._c = ctypes.CDLL(str(self.path))
        operations = [each for each in interfaces if hasattr(self._c, f"{each.name}_abi_version")]
        if not operations:
            names = " or ".join(each.name for each in interfaces)
            raise ImportError(f"{self.path} is not a library of {names} that autotune exported")
        self.interface = interface = operations[0]
        version = int(self.function("abi_version")())
        if version != ABI_VERSION:
            raise ImportError(
                f"{self.path} has version {version} of the interface and this loader version {ABI_VERSION}; "
                "use the python folder that was exported with it"
            )
        self._declare()
        arguments = struct.Struct(f"3Q{''.join(array.format for array in interface.arrays)}0Q")
        self.arguments_bytes, self.pack = arguments.size, arguments.pack
        """NAME_arguments: its size, a workspace and its bytes, and addresses and scalars in the order of the arrays"""
        self._problem = ctypes.c_int32 * (len(interface.sizes) + len(interface.words))
        kernel = [
            ("name", ctypes.c_char_p),
            ("problem", self._problem),
            ("accuracy", ctypes.c_char_p),
            ("deterministic", ctypes.c_int32),
            ("device", ctypes.c_char_p),
            ("median_us", ctypes.c_double),
        ]
        self._kernel = type("Kernel", (ctypes.Structure,), {"_fields_": kernel})

    def function(self, name: str) -> Callable[..., int]:
        """A function of the library. Raises AttributeError if it does not have the function."""
        found: Callable[..., int] = getattr(self._c, f"{self.interface.name}_{name}")
        return found

    def _text(self, name: str, *arguments: object) -> str | None:
        found: object = self.function(name)(*arguments)
        return found.decode() if isinstance(found, bytes) else None

    def _declare(self) -> None:
        """Declare argument types, because ctypes would truncate an address to an int."""
        pointer = ctypes.c_void_p
        sizes = (ctypes.c_int32,) * len(self.interface.runtime)
        arguments: dict[str, tuple[type, ...]] = {
            "workspace_size": (pointer, pointer),
            "prepare": (pointer, pointer, pointer, pointer),
            "handle_workspace_size": (pointer, *sizes, pointer),
            "run": (pointer, *sizes, pointer, pointer),
            "forward": (pointer, pointer, pointer),
            "handle_kernel_name": (pointer,),
            "release": (pointer,),
            "kernel_name": (pointer,),
            "status_text": (ctypes.c_int,),
            "last_error": (),
            "library_version": (),
            "kernel_at": (ctypes.c_int32, pointer),
            "array_at": (pointer, ctypes.c_int32, pointer),
        }
        for name, types in arguments.items():
            setattr(self.function(name), "argtypes", types)  # noqa: B010 - a Callable has none
        for name in ("handle_kernel_name", "kernel_name", "status_text", "last_error", "library_version"):
            setattr(self.function(name), "restype", ctypes.c_char_p)  # noqa: B010

    @property
    def version(self) -> str:
        """The program that wrote the library, such as `autotune 0.1.0`."""
        return self._text("library_version") or ""

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the library."""
        return tuple(self._kernel_at(index) for index in range(self.function("kernel_count")()))

    def _kernel_at(self, index: int) -> Kernel:
        found = self._kernel()
        self.call("kernel_at", index, ctypes.byref(found))
        problem = self.interface.of_numbers(tuple(found.problem))
        words = (found.name.decode(), problem, found.accuracy.decode())
        return Kernel(*words, bool(found.deterministic), found.device.decode(), found.median_us)

    def _of(self, problem: DeclaredProblem) -> ctypes.Array[ctypes.c_int32]:
        """The problem's numbers. Raises ValueError for one that does not fit its field."""
        return self._problem(*map(int32, problem.numbers))

    def array_shapes(self, problem: DeclaredProblem) -> tuple[ArrayShape, ...]:
        """The arrays of a problem; its run-time sizes may be 0. Raises LibraryError for an invalid problem."""
        if problem.is_empty:
            layout = str(problem.values.get("layout", ""))
            empty = [name for name in self.interface.runtime if problem.values[name] == 0]
            axes = {array.name: array.axes[layout] for array in self.interface.arrays}
            return tuple(
                dataclasses.replace(
                    array,
                    shape=tuple(
                        0 if axis in empty else extent
                        for axis, extent in zip(axes[array.name], array.shape, strict=True)
                    ),
                )
                for array in self.array_shapes(problem.with_runtime(*(max(1, size) for size in problem.runtime_sizes)))
            )
        found, of = _Array(), ctypes.byref(self._of(problem))
        shapes = []
        for index in range(len(self.interface.arrays)):
            self.call("array_at", of, index, ctypes.byref(found))
            if found.dtype is not None:
                words = (found.name.decode(), found.role.decode(), found.dtype.decode())
                shapes.append(ArrayShape(*words, tuple(found.shape[: found.rank]), found.size_bytes))
        return tuple(shapes)

    def kernel_name(self, problem: DeclaredProblem) -> str | None:
        """The kernel for a problem on the current context's device; None if there is none."""
        return self._text("kernel_name", ctypes.byref(self._of(problem)))

    def workspace_bytes(self, problem: DeclaredProblem) -> int:
        """Bytes of workspace of a pass on the current context's device. Raises LibraryError if there is no kernel for
        it.
        """
        size = ctypes.c_uint64()
        self.call("workspace_size", ctypes.byref(self._of(problem)), ctypes.byref(size))
        return size.value

    def prepared(self, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int) -> int:
        """The address of a handle with the kernel for a problem on the current context's device; the weights are
        copied.
        """
        address = ctypes.c_void_p()
        arguments = self.arguments(arrays, 0, 0)
        self.call("prepare", ctypes.byref(self._of(problem)), arguments, stream, ctypes.byref(address))
        return address.value or 0

    def forward(
        self,
        problem: DeclaredProblem,
        arrays: Mapping[str, Number],
        workspace: int = 0,
        workspace_bytes: int = 0,
        stream: int = 0,
    ) -> None:
        """Enqueue a pass on arrays, given by their addresses, and scalars, in one call. Raises LibraryError."""
        arguments = self.arguments(arrays, workspace, workspace_bytes)
        self.call("forward", ctypes.byref(self._of(problem)), arguments, stream)

    def enqueuer(self, problem: DeclaredProblem, workspace_bytes: int) -> Enqueue:
        """A function that enqueues a pass for a problem, whose weights are arguments as all other arrays are.

        The workspace has `workspace_bytes(problem)` bytes. Raises LibraryError, as `forward` does.
        """
        of, forward, arguments_bytes, pack = (
            self._of(problem),
            self.function("forward"),
            self.arguments_bytes,
            self.pack,
        )

        def enqueue(stream: int, workspace: int, addresses: Sequence[Number]) -> None:
            status = forward(ctypes.byref(of), pack(arguments_bytes, workspace, workspace_bytes, *addresses), stream)
            if status:
                raise self.error(status)

        return enqueue

    def arguments(self, arrays: Mapping[str, Number], workspace: int, workspace_bytes: int) -> bytes:
        """NAME_arguments with addresses and scalars by name."""
        addresses = (arrays.get(array.name, 0) for array in self.interface.arrays)
        return self.pack(self.arguments_bytes, workspace, workspace_bytes, *addresses)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status. Raises LibraryError if it is not OK."""
        status = self.function(function)(*arguments)
        if status:
            raise self.error(status)

    def error(self, status: int) -> LibraryError:
        """The library's message about the calling thread's latest call, which returned this status."""
        message, more = self._text("status_text", status) or "", self._text("last_error")
        return LibraryError(Status(status), f"{message} ({more})" if more else message)


class Handle:
    """A kernel that is prepared for one problem's shape on one device; freed by `release` or when it is deleted.

    It may run on several streams at once, each with its own workspace.
    """

    def __init__(self, library: Library, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int = 0) -> None:
        """Choose the kernel for a problem on the current context's device and copy the weights.

        `arrays` are device addresses. Once the stream has reached this point the weights may be changed or freed, and
        the handle may run on other streams. Raises LibraryError.
        """
        self._library = library
        self._address: int | None = library.prepared(problem, arrays, stream)
        # Freeing waits for the device. Not at exit, when the driver may already be gone.
        self._free = weakref.finalize(self, library.function("release"), self._address)
        self._free.atexit = False
        self.kernel_name = library._text("handle_kernel_name", self._address) or ""
        """study.layer of its kernel"""

    def workspace_bytes(self, *sizes: int) -> int:
        """Bytes of workspace of a pass with these run-time sizes. Raises LibraryError if the kernel does not support
        them.
        """
        size = ctypes.c_uint64()
        self._library.call("handle_workspace_size", self._address, *map(int32, sizes), ctypes.byref(size))
        return size.value

    def enqueuer(self, *sizes: int) -> Enqueue:
        """A function that enqueues a pass with these run-time sizes; it raises LibraryError.

        The workspace has `workspace_bytes(*sizes)` bytes; the address of an array that is not part of a launch is 0.
        The function neither allocates nor waits, so a pass may be captured into a CUDA graph. Everything that is the
        same for all passes is looked up here, because small layers are limited by the rest.
        """
        workspace_bytes, arguments_bytes = self.workspace_bytes(*sizes), self._library.arguments_bytes
        run = functools.partial(self._library.function("run"), self._address, *sizes)
        pack, error = self._library.pack, self._library.error

        def enqueue(stream: int, workspace: int, addresses: Sequence[Number]) -> None:
            status = run(pack(arguments_bytes, workspace, workspace_bytes, *addresses), stream)
            if status:
                raise error(status)

        return enqueue

    def release(self) -> None:
        """Wait until the device has finished with the handle and free it; it must not run again."""
        self._free()
        self._address = None
