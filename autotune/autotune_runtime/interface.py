"""Call an exported library's C interface, for any operation. Arrays are passed as device addresses."""

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
"""A function that enqueues a pass. Its arguments are a stream, the workspace's address, and the addresses of all arrays
in the interface's order. Scalars are passed by value.
"""
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


class _Array(ctypes.Structure):
    """The C struct `NAME_array`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("size_bytes", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8),
    )


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
    """A loaded shared library."""

    def __init__(self, path: str | Path, interfaces: Sequence[Interface]) -> None:
        """Load a library for one of the operations in `interfaces`.

        Raises OSError if the file can't be loaded, and ImportError if autotune didn't export it for one of these
        operations or if its interface version differs from this loader's.
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
        """packs a `NAME_arguments`: the struct's size, the workspace's address and size, then the addresses of arrays
        and the values of scalars in the interface's order"""
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
        """Return one of the library's functions. Raises AttributeError if there is no such function."""
        found: Callable[..., int] = getattr(self._c, f"{self.interface.name}_{name}")
        return found

    def _text(self, name: str, *arguments: object) -> str | None:
        found: object = self.function(name)(*arguments)
        return found.decode() if isinstance(found, bytes) else None

    def _declare(self) -> None:
        """Declare argument types, because otherwise ctypes would truncate an address to an int."""
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
        """Name and version of the program that wrote the library, such as `autotune 0.1.0`."""
        return self._text("library_version") or ""

    def kernels(self) -> tuple[Kernel, ...]:
        """Return all kernels of the library."""
        return tuple(self._kernel_at(index) for index in range(self.function("kernel_count")()))

    def _kernel_at(self, index: int) -> Kernel:
        found = self._kernel()
        self.call("kernel_at", index, ctypes.byref(found))
        problem = self.interface.of_numbers(tuple(found.problem))
        words = (found.name.decode(), problem, found.accuracy.decode())
        return Kernel(*words, bool(found.deterministic), found.device.decode(), found.median_us)

    def _of(self, problem: DeclaredProblem) -> ctypes.Array[ctypes.c_int32]:
        """Return the problem as a C array. Raises ValueError for a number that doesn't fit into 32 bits."""
        return self._problem(*map(int32, problem.numbers))

    def array_shapes(self, problem: DeclaredProblem) -> tuple[ArrayShape, ...]:
        """Return a problem's arrays. Its run-time sizes may be 0. Raises LibraryError for an invalid problem."""
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
        """Return the name of a problem's kernel on the current context's device, or None if there is no kernel."""
        return self._text("kernel_name", ctypes.byref(self._of(problem)))

    def workspace_bytes(self, problem: DeclaredProblem) -> int:
        """Return the number of workspace bytes that a pass needs on the current context's device.

        Raises LibraryError if there is no kernel for the problem.
        """
        size = ctypes.c_uint64()
        self.call("workspace_size", ctypes.byref(self._of(problem)), ctypes.byref(size))
        return size.value

    def prepared(self, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int) -> int:
        """Create a handle for a problem's kernel on the current context's device, and return its address.

        The handle copies the weights. Raises LibraryError.
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
        """Enqueue a pass without a handle. `arrays` contains addresses and scalars by name. Raises LibraryError."""
        arguments = self.arguments(arrays, workspace, workspace_bytes)
        self.call("forward", ctypes.byref(self._of(problem)), arguments, stream)

    def enqueuer(self, problem: DeclaredProblem, workspace_bytes: int) -> Enqueue:
        """Return a function that enqueues a pass for a problem, with weights as arguments like all other arrays.

        The workspace must have `workspace_bytes(problem)` bytes. Like `forward`, the returned function raises
        LibraryError.
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
        """Return a packed `NAME_arguments` with these addresses and scalars, which are given by name."""
        addresses = (arrays.get(array.name, 0) for array in self.interface.arrays)
        return self.pack(self.arguments_bytes, workspace, workspace_bytes, *addresses)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status. Raises LibraryError if it isn't OK."""
        status = self.function(function)(*arguments)
        if status:
            raise self.error(status)

    def error(self, status: int) -> LibraryError:
        """Return an error with this status and the library's message about the thread's latest call."""
        message, more = self._text("status_text", status) or "", self._text("last_error")
        return LibraryError(Status(status), f"{message} ({more})" if more else message)


class Handle:
    """A kernel with weights, prepared for one shape on one device. It is freed by `release` or when it is deleted.

    A handle can run on several streams at once, each with its own workspace.
    """

    def __init__(self, library: Library, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int = 0) -> None:
        """Choose a problem's kernel on the current context's device and copy the weights.

        `arrays` are device addresses. Once the stream has reached this point, the caller may change or free the
        weights, and the handle can run on other streams. Raises LibraryError.
        """
        self._library = library
        self._address: int | None = library.prepared(problem, arrays, stream)
        # Freeing waits for the device. Do not free at exit: the driver may already be gone.
        self._free = weakref.finalize(self, library.function("release"), self._address)
        self._free.atexit = False
        self.kernel_name = library._text("handle_kernel_name", self._address) or ""
        """name of the kernel, in the form study.layer"""

    def workspace_bytes(self, *sizes: int) -> int:
        """Return the number of workspace bytes that a pass with these run-time sizes needs.

        Raises LibraryError if the kernel doesn't support the sizes.
        """
        size = ctypes.c_uint64()
        self._library.call("handle_workspace_size", self._address, *map(int32, sizes), ctypes.byref(size))
        return size.value

    def enqueuer(self, *sizes: int) -> Enqueue:
        """Return a function that enqueues a pass with these run-time sizes and raises LibraryError.

        The workspace must have `workspace_bytes(*sizes)` bytes. For an array that a launch doesn't use, pass 0 as the
        address. The returned function neither allocates nor synchronizes, so CUDA graphs can capture it. Everything
        that is the same for all passes is looked up in advance, because host overhead limits small layers.
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
        """Wait until the device has finished with the handle, then free it. It must not run again."""
        self._free()
        self._address = None
