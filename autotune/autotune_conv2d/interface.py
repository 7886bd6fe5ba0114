"""The C interface of an exported library in Python, whatever its operation. Arrays are plain device addresses here."""

from __future__ import annotations

import ctypes
import enum
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

ABI_VERSION = 2


class Status(enum.IntEnum):
    """What a call of the library came to."""

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
    """The library refused a call; the message is its own words."""

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
    """None: it must be given"""


@dataclass(frozen=True, slots=True)
class InterfaceArray:
    """An array of a call."""

    name: str
    role: str
    axes: Mapping[str, tuple[str, ...]]
    """its extents, as expressions, by layout; of no name where the operation has no word for it"""
    dtypes: Mapping[str, str]
    """what its elements are stored as, by the problem's dtype"""
    optional: bool
    """whether some problems have none"""


@dataclass(frozen=True, slots=True)
class Interface:
    """What an operation declares of its problems and their arrays, in the order of the C interface."""

    name: str
    runtime: str
    """the size that may be any; all others are compiled in"""
    sizes: tuple[InterfaceSize, ...]
    words: Mapping[str, tuple[str, ...]]
    """what each enumeration may be; the first is the default"""
    arrays: tuple[InterfaceArray, ...]

    def problem(self, given: Mapping[str, int | str]) -> DeclaredProblem:
        """The problem of these sizes and words. Raises ValueError for one that there is not, or that is missing."""
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


class Problem(Protocol):
    """What the C interface needs of a problem."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Sizes, then words by their place."""


@dataclass(frozen=True)
class DeclaredProblem:
    """A problem of an operation."""

    interface: Interface
    values: Mapping[str, int | str]
    """every size and word"""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields of the C interface's problem."""
        sizes = (int(self.values[size.name]) for size in self.interface.sizes)
        words = (allowed.index(str(self.values[name])) for name, allowed in self.interface.words.items())
        return (*sizes, *words)


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True, slots=True)
class Kernel(Generic[P]):
    """A kernel of the library and what it was tuned for."""

    name: str
    """study.layer"""
    problem: P
    """what it was tuned on; it serves other run-time sizes too"""
    accuracy: str
    """fp32, fp32-3xtf32, tf32, fp16, fp16-acc16 or bf16"""
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
    """the last extent is densest"""
    size_bytes: int


def int32(number: int) -> int:
    """The number, which ctypes would cut to 32 bits. Raises ValueError when it has more."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is too large for the library, whose sizes have 32 bits")
    return number


def arguments_of(interface: Interface) -> type[ctypes.Structure]:
    """The struct of a call's arrays."""
    fields: list[tuple[str, type]] = [
        ("size_bytes", ctypes.c_uint64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
    ]
    fields += [(array.name, ctypes.c_void_p) for array in interface.arrays]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


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


def find_library(name: str, exported: Path | None = None) -> Path:
    """The shared library of a folder that was exported, there or in its `build`; None: of this package's folder.

    Raises FileNotFoundError with the places where it was looked for.
    """
    package = Path(__file__).resolve().parent
    folders = [package, package.parent, package.parent.parent, package.parent.parent / "build"]
    if exported is not None:
        folders = [exported, exported / "build"]
    file = f"lib{name}.so"
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    places = ", ".join(map(str, folders))
    raise FileNotFoundError(f"no {file} in {places}; build it (see README.md there), or give its path")


class Library(Generic[P]):
    """The shared library, loaded."""

    error_type: type[LibraryError] = LibraryError

    def __init__(
        self, interface: Interface, problem_of: Callable[[Sequence[int]], P], path: str | Path | None = None
    ) -> None:
        """Load a library; `path` None: the one that `find_library` finds. `problem_of` makes problems of numbers.

        Raises OSError when it cannot be loaded, ImportError when it has another interface than this loader.
        """
        self.interface = interface
        self.path = find_library(interface.name) if path is None else Path(path).resolve()
        self._problem_of = problem_of
        self._c = ctypes.CDLL(str(self.path))
        try:
            version = int(self.function("abi_version")())
        except AttributeError:
            raise ImportError(f"{self.path} is not a library that autotune exported") from None
        if version != ABI_VERSION:
            raise ImportError(
                f"{self.path} has version {version} of the interface and this loader version {ABI_VERSION}; "
                "take the python folder that was exported with it"
            )
        self._declare()
        self.arguments = arguments_of(interface)
        self.arguments_bytes = ctypes.sizeof(self.arguments)
        self._fields = (*(size.name for size in interface.sizes), *interface.words)
        fields = [(name, ctypes.c_int32) for name in self._fields]
        self._problem = type("Problem", (ctypes.Structure,), {"_fields_": fields})
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
        """A function of the library. Raises AttributeError where it has none of this name."""
        found: Callable[..., int] = getattr(self._c, f"{self.interface.name}_{name}")
        return found

    def _text(self, name: str, *arguments: object) -> str | None:
        found: object = self.function(name)(*arguments)
        return found.decode() if isinstance(found, bytes) else None

    def _declare(self) -> None:
        """Types of what is called: an address must not be cut to an int."""
        pointer = ctypes.c_void_p
        arguments: dict[str, tuple[type, ...]] = {
            "workspace_size": (pointer, pointer),
            "prepare": (pointer, pointer, pointer, pointer),
            "handle_workspace_size": (pointer, ctypes.c_int32, pointer),
            "run": (pointer, ctypes.c_int32, pointer, pointer),
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
        """What wrote the library, such as `autotune 0.1.0`."""
        return self._text("library_version") or ""

    def kernels(self) -> tuple[Kernel[P], ...]:
        """The kernels of the library."""
        return tuple(self._kernel_at(index) for index in range(self.function("kernel_count")()))

    def _kernel_at(self, index: int) -> Kernel[P]:
        found = self._kernel()
        self.call("kernel_at", index, ctypes.byref(found))
        numbers = [getattr(found.problem, name) for name in self._fields]
        words = (found.name.decode(), self._problem_of(numbers), found.accuracy.decode())
        return Kernel(*words, bool(found.deterministic), found.device.decode(), found.median_us)

    def _of(self, problem: P) -> ctypes.Structure:
        """The problem's numbers. Raises ValueError for one that a field cannot hold."""
        return self._problem(*map(int32, problem.numbers))

    def array_shapes(self, problem: P) -> tuple[ArrayShape, ...]:
        """The arrays that a problem has. Raises an error of the library where it is none."""
        found, of = _Array(), ctypes.byref(self._of(problem))
        shapes = []
        for index in range(len(self.interface.arrays)):
            self.call("array_at", of, index, ctypes.byref(found))
            if found.dtype is not None:
                words = (found.name.decode(), found.role.decode(), found.dtype.decode())
                shapes.append(ArrayShape(*words, tuple(found.shape[: found.rank]), found.size_bytes))
        return tuple(shapes)

    def kernel_name(self, problem: P) -> str | None:
        """The kernel that serves a problem on the current context's device; None where there is none."""
        return self._text("kernel_name", ctypes.byref(self._of(problem)))

    def workspace_bytes(self, problem: P) -> int:
        """Bytes of workspace of a pass on the current context's device. Raises where there is no kernel for it."""
        size = ctypes.c_uint64()
        self.call("workspace_size", ctypes.byref(self._of(problem)), ctypes.byref(size))
        return size.value

    def prepared(self, problem: P, arrays: Mapping[str, int], stream: int) -> int:
        """The address of a handle with the kernel for a problem on the current context's device, weights copied."""
        address = ctypes.c_void_p()
        arguments = self.arguments(self.arguments_bytes, **arrays)
        of = ctypes.byref(self._of(problem))
        self.call("prepare", of, ctypes.byref(arguments), stream, ctypes.byref(address))
        return address.value or 0

    def forward(
        self, problem: P, arrays: Mapping[str, int], workspace: int = 0, workspace_bytes: int = 0, stream: int = 0
    ) -> None:
        """Enqueue a pass on arrays, given by their addresses, in one call. Raises in the library's words."""
        arguments = self.arguments(self.arguments_bytes, workspace, workspace_bytes, **arrays)
        self.call("forward", ctypes.byref(self._of(problem)), ctypes.byref(arguments), stream)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status. Raises an error of the library when it is not OK."""
        status = self.function(function)(*arguments)
        if status:
            raise self.error(status)

    def error(self, status: int) -> LibraryError:
        """What the library says of the calling thread's latest call, which returned this status."""
        message, more = self._text("status_text", status) or "", self._text("last_error")
        return self.error_type(Status(status), f"{message} ({more})" if more else message)


class Handle(Generic[P]):
    """A kernel made ready for one problem's shape on one device; freed by `release` or when nothing refers to it.

    It may run on several streams at once, each with a workspace of its own.
    """

    def __init__(self, library: Library[P], problem: P, arrays: Mapping[str, int], stream: int = 0) -> None:
        """Choose the kernel for a problem on the current context's device and copy the weights among the arrays.

        `arrays` are device addresses. Once the stream has reached this point they may be changed or freed, and the
        handle may be run on other streams. Raises an error of the library.
        """
        self._library = library
        self._address: int | None = library.prepared(problem, arrays, stream)
        self._run = library.function("run")  # looked up once: small layers take no longer than their call
        # Freeing waits for the device to be done with it. Not at exit: the driver may be gone by then.
        self._free = weakref.finalize(self, library.function("release"), self._address)
        self._free.atexit = False
        self.kernel_name = library._text("handle_kernel_name", self._address) or ""
        """study.layer of its kernel"""

    def workspace_bytes(self, n: int) -> int:
        """Bytes of workspace of a pass of run-time size n. Raises where the kernel does not serve so much."""
        size = ctypes.c_uint64()
        self._library.call("handle_workspace_size", self._address, int32(n), ctypes.byref(size))
        return size.value

    def run(
        self, n: int, arrays: Mapping[str, int], workspace: int = 0, workspace_bytes: int = 0, stream: int = 0
    ) -> None:
        """Enqueue a pass of run-time size n on arrays, given by their device addresses. Raises in the library's words.

        Nothing is allocated and nothing waits, so that it may be captured into a CUDA graph.
        """
        library = self._library
        arguments = library.arguments(library.arguments_bytes, workspace, workspace_bytes, **arrays)
        status = self._run(self._address, int32(n), ctypes.byref(arguments), stream)
        if status:
            raise library.error(status)

    def release(self) -> None:
        """Wait for the device to be done with the handle and free it; it must not be run again."""
        self._free()
        self._address = None
