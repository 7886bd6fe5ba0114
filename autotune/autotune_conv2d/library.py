"""The C interface `autotune_conv2d.h` in Python, by ctypes. Arrays are plain device addresses here."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ABI_VERSION = 2
DTYPES = ("f32", "f16", "bf16")
LAYOUTS = ("nchw", "nhwc")
_ACTIVATIONS = ("relu6", "silu", "hardswish", "sigmoid", "gelu", "gelu_tanh", "leaky_relu")  # that came after ReLU
EPILOGUES = (
    *("none", "bias", "bias_relu", "bias_add", "bias_add_relu"),
    *(f"{terms}_{activation}" for activation in _ACTIVATIONS for terms in ("bias", "bias_add")),
)
ARRAYS = ("x", "w", "bias", "y", "z")
"""In the order of the C interface's conv2d_arguments."""
NAME = "libconv2d.so"


class Status(enum.IntEnum):
    """conv2d_status: what a call of the library came to."""

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


class Conv2dError(RuntimeError):
    """The library refused a call; the message is its own words."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[Conv2dError], tuple[Status, str]]:
        return (Conv2dError, (self.status, str(self)))


@dataclass(frozen=True, slots=True)
class Problem:
    """One conv2d forward pass: y [N, K, P, Q] = epilogue(conv2d(x [N, C, H, W], w [K, C/groups, R, S])).

    Layout nhwc stores x [N, H, W, C], w [K, R, S, C/groups], y [N, P, Q, K]. Raises ValueError for a dtype, layout or
    epilogue that there is not; whether the sizes make a convolution is for the library to say.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    dtype: str = "f32"
    layout: str = "nchw"
    epilogue: str = "none"

    def __post_init__(self) -> None:
        for name, allowed in _WORDS:
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {', '.join(allowed)}")

    @classmethod
    def of(cls, sizes: Iterable[int], dtype: str, layout: str, epilogue: str) -> Problem:
        """The problem with these numbers, in the order of the fields."""
        return cls(**dict(zip(_SIZES, sizes, strict=True)), dtype=dtype, layout=layout, epilogue=epilogue)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields of the C interface's conv2d_problem."""
        words = (allowed.index(getattr(self, name)) for name, allowed in _WORDS)
        return (*(getattr(self, name) for name in _SIZES), *words)

    @property
    def p(self) -> int:
        """Output height."""
        return (self.h + 2 * self.pad_h - (self.r - 1) * self.dilation_h - 1) // self.stride_h + 1

    @property
    def q(self) -> int:
        """Output width."""
        return (self.w + 2 * self.pad_w - (self.s - 1) * self.dilation_w - 1) // self.stride_w + 1

    def x_shape(self, n: int) -> tuple[int, ...]:
        """Shape of n images as they are stored."""
        return (n, self.c, self.h, self.w) if self.layout == "nchw" else (n, self.h, self.w, self.c)

    def y_shape(self, n: int) -> tuple[int, ...]:
        """Shape of n outputs as they are stored."""
        return (n, self.k, self.p, self.q) if self.layout == "nchw" else (n, self.p, self.q, self.k)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the filters as they are stored."""
        c = self.c // self.groups
        return (self.k, c, self.r, self.s) if self.layout == "nchw" else (self.k, self.r, self.s, c)

    @property
    def has_residual(self) -> bool:
        """Whether a pass adds an array z of y's shape."""
        return self.epilogue.startswith("bias_add")

    @property
    def activation(self) -> str:
        """The word of the function that ends its epilogue, such as relu; empty where there is none."""
        return self.epilogue.removeprefix("none").removeprefix("bias").removeprefix("_add").removeprefix("_")

    def with_n(self, n: int) -> Problem:
        """The same shape for another number of images."""
        return dataclasses.replace(self, n=n)


def epilogue_name(*, residual: bool, activation: str) -> str:
    """What an epilogue with a bias is called; `activation` is a word such as relu, or empty. Not each is there."""
    return "_".join(("bias", *(("add",) if residual else ()), *((activation,) if activation else ())))


_SIZES = tuple(field.name for field in dataclasses.fields(Problem) if field.type == "int")
_WORDS = (("dtype", DTYPES), ("layout", LAYOUTS), ("epilogue", EPILOGUES))


def _int32(number: int) -> int:
    """The number, which ctypes would cut to 32 bits. Raises ValueError when it has more."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is too large for the library, whose sizes have 32 bits")
    return number


class _Problem(ctypes.Structure):
    """conv2d_problem."""

    _fields_ = tuple((name, ctypes.c_int32) for name in (*_SIZES, *(name for name, _ in _WORDS)))

    @classmethod
    def of(cls, problem: Problem) -> _Problem:
        """The problem's numbers. Raises ValueError for one that a field cannot hold."""
        return cls(*map(_int32, problem.numbers))

    def problem(self) -> Problem:
        words = (allowed[getattr(self, name)] for name, allowed in _WORDS)
        return Problem.of((getattr(self, name) for name in _SIZES), *words)


class _Arguments(ctypes.Structure):
    """conv2d_arguments."""

    _fields_ = (
        ("size_bytes", ctypes.c_uint64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ARRAYS),
    )


_ARGUMENTS_BYTES = ctypes.sizeof(_Arguments)


class _Kernel(ctypes.Structure):
    """conv2d_kernel."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("problem", _Problem),
        ("accuracy", ctypes.c_char_p),
        ("deterministic", ctypes.c_int32),
        ("device", ctypes.c_char_p),
        ("median_us", ctypes.c_double),
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the library and what it was tuned for."""

    name: str
    """study.layer"""
    problem: Problem
    """what it was tuned on; it serves other n too"""
    accuracy: str
    """fp32, fp32-3xtf32, tf32, fp16, fp16-acc16 or bf16"""
    deterministic: bool
    device: str
    """name of the device it was tuned on"""
    median_us: float
    """time of a pass there"""


def find_library(exported: Path | None = None) -> Path:
    """The shared library of a folder that was exported, there or in its `build`; None: of this package's folder.

    Raises FileNotFoundError with the places where it was looked for.
    """
    package = Path(__file__).resolve().parent
    folders = [package, package.parent, package.parent.parent, package.parent.parent / "build"]
    if exported is not None:
        folders = [exported, exported / "build"]
    for folder in folders:
        if (folder / NAME).is_file():
            return folder / NAME
    places = ", ".join(map(str, folders))
    raise FileNotFoundError(f"no {NAME} in {places}; build it (see README.md there), or give its path")


class Library:
    """The shared library, loaded."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Load a library; `path` None: the one that `find_library` finds.

        Raises OSError when it cannot be loaded, ImportError when it has another interface than this loader.
        """
        self.path = find_library() if path is None else Path(path).resolve()
        self._c = ctypes.CDLL(str(self.path))
        try:
            version = int(self._c.conv2d_abi_version())
        except AttributeError:
            raise ImportError(f"{self.path} is not a library that autotune exported") from None
        if version != ABI_VERSION:
            raise ImportError(
                f"{self.path} has version {version} of the interface and this loader version {ABI_VERSION}; "
                "take the python folder that was exported with it"
            )
        _declare(self._c)

    @property
    def version(self) -> str:
        """What wrote the library, such as `autotune 0.1.0`."""
        return bytes(self._c.conv2d_library_version()).decode()

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the library."""
        return tuple(self._kernel(index) for index in range(self._c.conv2d_kernel_count()))

    def _kernel(self, index: int) -> Kernel:
        found = _Kernel()
        self.call("conv2d_kernel_at", index, ctypes.byref(found))
        words = (found.name.decode(), found.problem.problem(), found.accuracy.decode())
        return Kernel(*words, bool(found.deterministic), found.device.decode(), found.median_us)

    def kernel_name(self, problem: Problem) -> str | None:
        """The kernel that serves a problem on the current context's device; None where there is none."""
        name = self._c.conv2d_kernel_name(ctypes.byref(_Problem.of(problem)))
        return None if name is None else bytes(name).decode()

    def workspace_bytes(self, problem: Problem) -> int:
        """Bytes of workspace of a pass on the current context's device. Raises Conv2dError without a kernel for it."""
        size = ctypes.c_uint64()
        self.call("conv2d_workspace_size", ctypes.byref(_Problem.of(problem)), ctypes.byref(size))
        return size.value

    def prepare(self, problem: Problem, arrays: Mapping[str, int], stream: int = 0) -> Handle:
        """Choose the kernel for a problem on the current context's device and copy filters and bias into a handle.

        `arrays` are device addresses: `w` and, where the problem has one, `bias`. Once the stream has reached this
        point they may be changed or freed, and the handle may be run on other streams. Raises Conv2dError.
        """
        address = ctypes.c_void_p()
        arguments = _Arguments(_ARGUMENTS_BYTES, **arrays)
        of = ctypes.byref(_Problem.of(problem))
        self.call("conv2d_prepare", of, ctypes.byref(arguments), stream, ctypes.byref(address))
        return Handle(self, address)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status. Raises Conv2dError when it is not OK."""
        status = getattr(self._c, function)(*arguments)
        if status:
            raise self.error(status)

    def error(self, status: int) -> Conv2dError:
        """What the library says of the calling thread's latest call, which returned this status."""
        message = bytes(self._c.conv2d_status_text(status)).decode()
        more = bytes(self._c.conv2d_last_error()).decode()
        return Conv2dError(Status(status), f"{message} ({more})" if more else message)


def _declare(c: ctypes.CDLL) -> None:
    """Types of what is called: an address must not be cut to an int."""
    pointer = ctypes.c_void_p
    arguments: dict[str, tuple[type, ...]] = {
        "conv2d_workspace_size": (pointer, pointer),
        "conv2d_prepare": (pointer, pointer, pointer, pointer),
        "conv2d_handle_workspace_size": (pointer, ctypes.c_int32, pointer),
        "conv2d_run": (pointer, ctypes.c_int32, pointer, pointer),
        "conv2d_handle_kernel_name": (pointer,),
        "conv2d_release": (pointer,),
        "conv2d_kernel_name": (pointer,),
        "conv2d_status_text": (ctypes.c_int,),
        "conv2d_last_error": (),
        "conv2d_library_version": (),
        "conv2d_kernel_at": (ctypes.c_int32, pointer),
    }
    texts = ("handle_kernel_name", "kernel_name", "status_text", "last_error", "library_version")
    for name, types in arguments.items():
        getattr(c, name).argtypes = types
    for name in texts:
        getattr(c, f"conv2d_{name}").restype = ctypes.c_char_p


class Handle:
    """Filters made ready for one problem's shape on one device; freed by `release` or when nothing refers to it.

    It may run on several streams at once, each with a workspace of its own.
    """

    def __init__(self, library: Library, address: ctypes.c_void_p) -> None:
        self._library = library
        self._address = address.value
        self._run = library._c.conv2d_run  # looked up once: small layers take no longer than their call
        # Freeing waits for the device to be done with it. Not at exit: the driver may be gone by then.
        self._free = weakref.finalize(self, library._c.conv2d_release, self._address)
        self._free.atexit = False
        self.kernel_name = bytes(library._c.conv2d_handle_kernel_name(self._address)).decode()
        """study.layer of its kernel"""

    def workspace_bytes(self, n: int) -> int:
        """Bytes of workspace of a pass over n images. Raises Conv2dError where the kernel does not serve so many."""
        size = ctypes.c_uint64()
        self._library.call("conv2d_handle_workspace_size", self._address, _int32(n), ctypes.byref(size))
        return size.value

    def run(
        self, n: int, arrays: Mapping[str, int], workspace: int = 0, workspace_bytes: int = 0, stream: int = 0
    ) -> None:
        """Enqueue a pass over n images, `arrays` being the device addresses of x and y. Raises Conv2dError.

        Nothing is allocated and nothing waits, so that it may be captured into a CUDA graph.
        """
        arguments = _Arguments(_ARGUMENTS_BYTES, workspace, workspace_bytes, **arrays)
        status = self._run(self._address, _int32(n), ctypes.byref(arguments), stream)
        if status:
            raise self._library.error(status)

    def enqueuer(self, n: int) -> Callable[[int, int, int, int, int], None]:
        """`run` over n images in a third of its time, for networks of small layers: everything known is set up once.

        The function takes the addresses of x, y, z (0: none) and of `workspace_bytes(n)`, and the stream.
        """
        size_bytes, number = self.workspace_bytes(n), _int32(n)
        run, address, error = self._run, self._address, self._library.error
        spare: list[_Arguments] = []  # each is used by one thread at a time

        def enqueue(x: int, y: int, z: int, workspace: int, stream: int) -> None:
            try:
                arguments = spare.pop()
            except IndexError:
                arguments = _Arguments(_ARGUMENTS_BYTES, 0, size_bytes)
            arguments.workspace, arguments.x, arguments.y, arguments.z = workspace, x, y, z
            status = run(address, number, ctypes.byref(arguments), stream)
            spare.append(arguments)
            if status:
                raise error(status)

        return enqueue

    def release(self) -> None:
        """Wait for the device to be done with the handle and free it; it must not be run again."""
        self._free()
        self._address = None
