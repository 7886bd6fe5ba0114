"""Call an exported library's C interface, for any operation."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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

ABI_VERSION = 2


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


class CLibrary(Library):
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
        self.version = self.text("library_version") or ""
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
            ("constant_weights", ctypes.c_int32),
            ("device", ctypes.c_char_p),
            ("median_us", ctypes.c_double),
        ]
        self._kernel = type("Kernel", (ctypes.Structure,), {"_fields_": kernel})

    def function(self, name: str) -> Callable[..., int]:
        """Return one of the library's functions. Raises AttributeError if there is no such function."""
        found: Callable[..., int] = getattr(self._c, f"{self.interface.name}_{name}")
        return found

    def text(self, name: str, *arguments: object) -> str | None:
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

    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(self._kernel_at(index) for index in range(self.function("kernel_count")()))

    def _kernel_at(self, index: int) -> Kernel:
        found = self._kernel()
        self.call("kernel_at", index, ctypes.byref(found))
        problem = self.interface.of_numbers(tuple(found.problem))
        words = (found.name.decode(), problem, found.accuracy.decode())
        where = found.device.decode(), found.median_us
        return Kernel(*words, bool(found.deterministic), *where, bool(found.constant_weights))

    def _of(self, problem: DeclaredProblem) -> ctypes.Array[ctypes.c_int32]:
        """Return the problem as a C array. Raises ValueError for a number that doesn't fit into 32 bits."""
        return self._problem(*map(int32, problem.numbers))

    def _array_shapes(self, problem: DeclaredProblem) -> tuple[ArrayShape, ...]:
        found, of = _Array(), ctypes.byref(self._of(problem))
        shapes = []
        for index in range(len(self.interface.arrays)):
            self.call("array_at", of, index, ctypes.byref(found))
            if found.dtype is not None:
                words = (found.name.decode(), found.role.decode(), found.dtype.decode())
                shapes.append(ArrayShape(*words, tuple(found.shape[: found.rank]), found.size_bytes))
        return tuple(shapes)

    def kernel_name(self, problem: DeclaredProblem) -> str | None:
        return self.text("kernel_name", ctypes.byref(self._of(problem)))

    def workspace_bytes(self, problem: DeclaredProblem) -> int:
        size = ctypes.c_uint64()
        self.call("workspace_size", ctypes.byref(self._of(problem)), ctypes.byref(size))
        return size.value

    def prepared(self, problem: DeclaredProblem, arrays: Mapping[str, int], stream: int) -> CHandle:
        address = ctypes.c_void_p()
        addresses = (arrays.get(array.name, 0) for array in self.interface.arrays)
        arguments = self.pack(self.arguments_bytes, 0, 0, *addresses)
        self.call("prepare", ctypes.byref(self._of(problem)), arguments, stream, ctypes.byref(address))
        return CHandle(self, address.value)

    def enqueuer(self, problem: DeclaredProblem, workspace_bytes: int) -> Enqueue:
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

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status. Raises LibraryError if it isn't OK."""
        status = self.function(function)(*arguments)
        if status:
            raise self.error(status)

    def error(self, status: int) -> LibraryError:
        """Return an error with this status and the library's message about the thread's latest call."""
        message, more = self.text("status_text", status) or "", self.text("last_error")
        return LibraryError(Status(status), f"{message} ({more})" if more else message)


class CHandle:
    """A library's handle, which holds a kernel and copies of its weights."""

    def __init__(self, library: CLibrary, address: int | None) -> None:
        self._library, self._address = library, address
        self.kernel_name = library.text("handle_kernel_name", address) or ""

    def workspace_bytes(self, *sizes: int) -> int:
        size = ctypes.c_uint64()
        self._library.call("handle_workspace_size", self._address, *map(int32, sizes), ctypes.byref(size))
        return size.value

    def enqueuer(self, *sizes: int) -> Enqueue:
        workspace_bytes, arguments_bytes = self.workspace_bytes(*sizes), self._library.arguments_bytes
        run = functools.partial(self._library.function("run"), self._address, *sizes)
        pack, error = self._library.pack, self._library.error

        def enqueue(stream: int, workspace: int, addresses: Sequence[Number]) -> None:
            status = run(pack(arguments_bytes, workspace, workspace_bytes, *addresses), stream)
            if status:
                raise error(status)

        return enqueue

    def release(self) -> None:
        self._library.function("release")(self._address)
        self._address = None
