"""Call the CUDA driver through ctypes: load code, encode tensor maps and launch kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

from .interface import LibraryError, Status

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_
_STATUSES = {2: Status.OUT_OF_MEMORY, 200: Status.WRONG_DEVICE, 209: Status.WRONG_DEVICE}
"""Meanings of CUDA_ERROR_OUT_OF_MEMORY, _INVALID_IMAGE and _NO_BINARY_FOR_GPU. Others are CUDA_ERROR."""
MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # size and alignment of CUtensorMap
_MAP_TYPES = {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}  # CU_TENSOR_MAP_DATA_TYPE_
_MAP_TYPE_BYTES = {"f16": 2, "f32": 4, "bf16": 2, "tf32": 4}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_
_INTERLEAVE_NONE, _ZEROS_OUTSIDE = 0, 0
_L2_PROMOTION_128B, _L2_PROMOTION_256B = 2, 3  # bytes that a load fetches into L2
_LARGE_BYTES = 2**27  # for float32 tensors of this size, fetching 256 bytes takes up to 4 % less time


class DriverError(LibraryError):
    """A driver call failed. The message is the driver's."""


def call(name: str, *arguments: object) -> None:
    """Call a driver function. Raises DriverError if it fails."""
    status = function(name)(*arguments)
    if status:
        raise driver_error(name, status)


def driver_error(name: str, status: int) -> DriverError:
    """Return the error of a failed call. `name` is the driver's function or a kernel."""
    message = ctypes.c_char_p()
    function("cuGetErrorString")(ctypes.c_int(status), ctypes.byref(message))
    words = (message.value or b"").decode() or f"error {status}"
    return DriverError(_STATUSES.get(status, Status.CUDA_ERROR), f"{name} failed: {words}")


def function(name: str) -> Callable[..., int]:
    """Return a driver function. Raises OSError if there is no driver, AttributeError if it lacks the function."""
    found: Callable[..., int] = getattr(libcuda(), name)
    return found


@cache
def libcuda() -> ctypes.CDLL:
    """Load the driver's library. Raises OSError if there is none."""
    return ctypes.CDLL("libcuda.so.1")


def current_context() -> int:
    """Return the address of the calling thread's context, or 0 if it has none."""
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value or 0


@contextmanager
def current(context: int) -> Iterator[None]:
    """Make a context the calling thread's current one inside the block."""
    before = current_context()
    call("cuCtxSetCurrent", ctypes.c_void_p(context))
    try:
        yield
    finally:
        call("cuCtxSetCurrent", ctypes.c_void_p(before))


class Memory:
    """Device memory in the current context, with a copy of what is at an address."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes, self._address = size_bytes, ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(size_bytes))

    @property
    def address(self) -> int:
        """The device address."""
        return self._address.value

    def free(self) -> None:
        """Free the memory."""
        call("cuMemFree_v2", self._address)


def copy(to: int, source: int, size_bytes: int, stream: int) -> None:
    """Enqueue a copy in device memory."""
    addresses = (ctypes.c_uint64(address) for address in (to, source))
    call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(size_bytes), ctypes.c_void_p(stream))


class Module:
    """Code loaded into the current context."""

    def __init__(self, image: bytes) -> None:
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), image)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._admitted: dict[str, int] = {}

    def function(self, entry: str, smem_bytes: int) -> ctypes.c_void_p:
        """Return a function that may be launched with this much dynamic shared memory."""
        found = self._functions.get(entry)
        if found is None:
            found = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(found), self._module, entry.encode())
            self._functions[entry] = found
        if smem_bytes > self._admitted.get(entry, 0):
            attribute = ctypes.c_int(MAX_DYNAMIC_SHARED_SIZE_BYTES), ctypes.c_int(smem_bytes)
            call("cuFuncSetAttribute", found, *attribute)
            self._admitted[entry] = smem_bytes
        return found

    def constant(self, name: str) -> tuple[int, int]:
        """Return the address and size of a `__constant__` array."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), self._module, name.encode())
        return address.value, size.value

    def unload(self) -> None:
        """Unload the module. If a kernel broke the context, this fails silently, and the context unloads it."""
        with suppress(DriverError):
            call("cuModuleUnload", self._module)


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig. `sizes` are those of the grid, of the block, and of dynamic shared memory."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


_EARLY = _LaunchAttribute(6, 0, (1,))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


def launch_config(sizes: Sequence[int], *, early: bool) -> LaunchConfig:
    """Configure a launch. If it is `early`, the kernel may start before preceding kernels have ended."""
    return LaunchConfig(tuple(sizes), None, ctypes.pointer(_EARLY), int(early))


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor without gaps, and the box copied by one instruction. The innermost dimension comes first.

    The names come from `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`.
    """

    dtype: str
    """f32, f16, bf16, or tf32, with which a load rounds f32 to the nearest TF32, ties to even"""
    global_dim: tuple[int, ...]
    """elements of the tensor in each dimension"""
    box_dim: tuple[int, ...]
    """elements of the box in each dimension; im2col: channels and pixels"""
    element_strides: tuple[int, ...]
    """step between copied elements in each dimension; im2col: step between windows"""
    swizzle_bytes: int
    lower_corner: tuple[int, ...] = ()
    """im2col: the range of the windows' first elements, together with `upper_corner`, [w], [w, h] or [w, h, d]; empty:
    tiled
    """
    upper_corner: tuple[int, ...] = ()

    @property
    def im2col(self) -> bool:
        """Whether the map is an im2col map, which copies pixels in the order in which a convolution's window reads
        them.
        """
        return bool(self.lower_corner)


def aligned_memory(size_bytes: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Return host memory, and the first position in it that is aligned for a tensor map."""
    memory = ctypes.create_string_buffer(size_bytes + _MAP_ALIGNMENT)
    return memory, -ctypes.addressof(memory) % _MAP_ALIGNMENT


@cache
def _replace_address() -> Callable[[int, int], int]:
    """Return cuTensorMapReplaceAddress, which takes a tenth of the time of encoding a map again."""
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(("cuTensorMapReplaceAddress", libcuda()))


class EncodedMap:
    """A tensor map in host memory."""

    def __init__(self, tensor: TensorMap, address: int) -> None:
        """`address` is where the driver writes the map. It must be aligned."""
        rank, strides, size_bytes = len(tensor.global_dim), [], _MAP_TYPE_BYTES[tensor.dtype]
        for extent in tensor.global_dim:
            size_bytes *= extent
            strides.append(size_bytes)
        map_type = (ctypes.c_int(_MAP_TYPES[tensor.dtype]), ctypes.c_uint32(rank))
        dims = ((ctypes.c_uint64 * rank)(*tensor.global_dim), (ctypes.c_uint64 * rank)(*strides))
        element_strides = (ctypes.c_uint32 * rank)(*tensor.element_strides)
        large = _MAP_TYPE_BYTES[tensor.dtype] == 4 and size_bytes >= _LARGE_BYTES
        promotion = _L2_PROMOTION_256B if large else _L2_PROMOTION_128B
        how = (_INTERLEAVE_NONE, _SWIZZLES[tensor.swizzle_bytes], promotion, _ZEROS_OUTSIDE)
        self._begin = (ctypes.c_void_p(address), *map_type)
        if tensor.im2col:
            self._name = "cuTensorMapEncodeIm2col"
            corners = ((ctypes.c_int * len(each))(*each) for each in (tensor.lower_corner, tensor.upper_corner))
            self._end = (*dims, *corners, *map(ctypes.c_uint32, tensor.box_dim), element_strides, *how)
        else:
            self._name = "cuTensorMapEncodeTiled"
            self._end = (*dims, (ctypes.c_uint32 * rank)(*tensor.box_dim), element_strides, *how)
        self._address = address
        self.array = 0
        """device address of the array; 0: the map is not encoded yet"""

    def point_to(self, array: int) -> None:
        """Make this the map of an array at a device address."""
        if not self.array:
            call(self._name, *self._begin, ctypes.c_void_p(array), *self._end)
        elif status := _replace_address()(self._address, array):
            raise driver_error("cuTensorMapReplaceAddress", status)
        self.array = array
