"""Read the memory and streams of GPU arrays, and create new arrays.

Arrays may come from PyCUDA, CuPy or PyTorch, or from any library that implements `__cuda_array_interface__`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

_TYPESTRS = {
    "f32": ("<f4",),
    "f16": ("<f2",),
    "bf16": ("<V2", "|V2"),
    "i32": ("<i4",),
    "f64": ("<f8",),
    "e4m3": ("<V1", "|V1"),
    "e5m2": ("<f1", "|f1"),
    "i8": ("|i1", "<i1"),
    "u8": ("|u1", "<u1"),
    "i64": ("<i8",),
}
"""Typestrs of storage types. NumPy has no names for bf16, e4m3 and e5m2, so these have ml_dtypes's typestrs."""

TORCH_DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "i32",
    "float64": "f64",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "i8",
    "uint8": "u8",
    "int64": "i64",
}
"""PyTorch's name for each storage type."""


def element_bytes(dtype: str) -> int:
    """Return the size of a storage type's elements."""
    return int(_TYPESTRS[dtype][0][2:])


class View(NamedTuple):
    """A dense array's memory."""

    address: int
    shape: tuple[int, ...]
    elements: str
    """element type: a typestr, or the dtype's name in this package for PyTorch tensors"""
    element_bytes: int
    device: int | None
    """number of the device; None if the array does not report one, as with PyCUDA"""

    @property
    def size_bytes(self) -> int:
        """Size of all elements in bytes."""
        return math.prod(self.shape) * self.element_bytes


def view(array: object, what: str) -> View:
    """Read an array's description. Raises TypeError unless it is on a GPU, and ValueError unless it is dense."""
    interface = _described(array, what)
    shape = tuple(map(int, interface["shape"]))
    typestr, strides = str(interface["typestr"]), interface.get("strides")
    element_bytes = int(typestr[2:])
    if strides is not None and not _dense(shape, strides, element_bytes):
        raise ValueError(f"{what}: is not contiguous (C order); copy it first")
    device = interface.get("device", _device(array))
    return View(int(interface["data"][0]), shape, _of_torch(array) or typestr, element_bytes, device)


def check(view: View, what: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array has this dtype and shape."""
    if view.elements not in (dtype, *_TYPESTRS[dtype]):
        raise ValueError(f"{what}: its elements are {view.elements}, the problem's {_TYPESTRS[dtype][0]} ({dtype})")
    if view.shape != shape:
        raise ValueError(f"{what}: has shape {view.shape}, expected {shape}")


def _described(array: Any, what: str) -> Mapping[str, Any]:
    """Return the array's own description of its memory. Raises TypeError unless it is in GPU memory."""
    interface: Mapping[str, Any] | None = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        name = type(array).__name__
        raise TypeError(f"{what}: a {name} is not an array on a GPU: it has no __cuda_array_interface__")
    return interface


def dtype_of(view: View, what: str) -> str:
    """Return this package's name for an array's element type. Raises ValueError for a type that no kernel supports."""
    for dtype, typestrs in _TYPESTRS.items():
        if view.elements in (dtype, *typestrs):
            return dtype
    raise ValueError(f"{what}: its elements are {view.elements}, expected one of {', '.join(_TYPESTRS)}")


def _of_torch(array: Any) -> str | None:
    """Return a PyTorch tensor's dtype, or None for other arrays. (PyTorch gives bfloat16 the typestr of float16.)"""
    if _library_of(array) != "torch":
        return None
    dtype = str(array.dtype)
    return TORCH_DTYPES.get(dtype.removeprefix("torch."), dtype)


def _device(array: Any) -> int | None:
    library = _library_of(array)
    return int(array.device.id if library == "cupy" else array.device.index) if library in ("cupy", "torch") else None


def on_device_of(array: Any) -> AbstractContextManager[object]:
    """Make an array's device the calling thread's current device inside the block.

    If the array is neither PyTorch's nor CuPy's, the current device stays the same.
    """
    library = _library_of(array)
    if library == "torch":
        import torch

        return torch.cuda.device(array.device)
    return array.device if library == "cupy" else nullcontext()


def _dense(shape: Sequence[int], strides: Sequence[int], element_bytes: int) -> bool:
    expected = element_bytes
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def stream_address(stream: object, array: object) -> int:
    """Return the `cudaStream_t` of a PyCUDA, CuPy, PyTorch or cuda.core stream. Numbers are returned unchanged.

    None stands for the current stream of the array's library, or for the default stream if the library has no current
    one, like PyCUDA.
    """
    if stream is None:
        library = _library_of(array)
        if library == "cupy":
            import cupy

            return int(cupy.cuda.get_current_stream().ptr)
        if library == "torch":
            return torch_stream(array.device)  # type: ignore[attr-defined]
        return 0
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("ptr", "handle", "cuda_stream"):  # attributes of CuPy, PyCUDA and PyTorch streams
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return int(stream)  # type: ignore[call-overload]


def torch_stream(device: Any) -> int:
    """Return the address of PyTorch's current stream on a device.

    PyTorch's own compiler reads it in the same way, because `torch.cuda.current_stream` creates an object, which takes
    half as long as a launch.
    """
    stream: int = sys.modules["torch"]._C._cuda_getCurrentRawStream(device.index)
    return stream


def empty_like(array: object, shape: Sequence[int], stream: int) -> object:
    """Create an array of this shape with another array's device, library and dtype, for use on a stream.

    Raises TypeError for an array from an unknown library.
    """
    library = _library_of(array)
    if library not in _EMPTY:
        raise TypeError(
            f"cannot make an array like a {type(array).__name__}; give the output, and `workspace` where one is needed"
        )
    return _EMPTY[library](array, tuple(shape), stream)


def workspace_like(array: object, size_bytes: int, stream: int) -> object:
    """Allocate at least this many bytes on another array's device, for use on a stream."""
    return empty_like(array, (math.ceil(size_bytes / view(array, "x").element_bytes),), stream)


def _library_of(array: object) -> str:
    return type(array).__module__.partition(".")[0]


def _cupy(array: Any, shape: tuple[int, ...], stream: int) -> object:
    import cupy

    kind = cupy.cuda.Stream
    if not stream:
        on = kind.null
    elif hasattr(kind, "from_external"):
        on = kind.from_external(_Stream(stream))
    else:  # CuPy older than 14
        on = cupy.cuda.ExternalStream(stream)
    with array.device, on:  # CuPy's pool returns memory to the stream that allocated it
        return cupy.empty(shape, array.dtype)


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream address that implements the CUDA stream protocol."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.address)


def _pycuda(array: Any, shape: tuple[int, ...], _: int) -> object:
    return type(array)(shape, array.dtype)  # freeing the array waits for the device


def _torch(array: Any, shape: tuple[int, ...], stream: int) -> object:
    import torch

    if stream == torch_stream(array.device):
        return torch.empty(shape, dtype=array.dtype, device=array.device)
    default = torch.cuda.default_stream(array.device)
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=array.device) if stream else default):
        return torch.empty(shape, dtype=array.dtype, device=array.device)


_EMPTY: Mapping[str, Callable[[Any, tuple[int, ...], int], object]] = {
    "cupy": _cupy,
    "pycuda": _pycuda,
    "torch": _torch,
}
