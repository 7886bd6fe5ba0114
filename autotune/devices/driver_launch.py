"""Launch kernels through the driver API, because PyCUDA can't pass tensor maps or launch kernels early."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autotune.devices.device import Launch
from autotune.devices.driver_api import DriverError, call
from autotune.devices.tensor_map import BoundTensorMap

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_


class DriverModule:
    """A cubin loaded into the current context, for kernels that PyCUDA can't launch."""

    def __init__(self, image: bytes) -> None:
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), image)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._launches: dict[Launch, _Prepared] = {}

    def ready(self, launch: Launch) -> None:
        """Find the function and encode the tensor maps, which takes much longer than a launch."""
        self._prepared(launch)

    def launch(self, launch: Launch, stream: int) -> None:
        """Enqueue a kernel on the stream with the address `stream`."""
        prepared = self._prepared(launch)
        config = _LaunchConfig(prepared.sizes, stream, ctypes.pointer(_EARLY), int(launch.early))
        call("cuLaunchKernelEx", ctypes.byref(config), prepared.function, prepared.parameters, None)

    def unload(self) -> None:
        """Unload the module. If a kernel broke the context, this fails silently, and the context unloads it."""
        with suppress(DriverError):
            call("cuModuleUnload", self._module)

    def _prepared(self, launch: Launch) -> _Prepared:
        prepared = self._launches.get(launch)
        if prepared is None:
            held = tuple(_content(argument) for argument in launch.args)
            parameters = (ctypes.c_void_p * len(held))(*(content.address for content in held))
            sizes = (*launch.grid, *launch.block, launch.smem_bytes)
            prepared = self._launches[launch] = _Prepared(self._function(launch), sizes, parameters, held)
        return prepared

    def _function(self, launch: Launch) -> ctypes.c_void_p:
        function = self._functions.get(launch.entry)
        if function is None:
            function = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(function), self._module, launch.entry.encode())
            attribute = ctypes.c_int(_MAX_DYNAMIC_SHARED_SIZE_BYTES), ctypes.c_int(launch.smem_bytes)
            call("cuFuncSetAttribute", function, *attribute)
            self._functions[launch.entry] = function
        return function


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


_EARLY = _LaunchAttribute(6, 0, (1,))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The arguments of cuLaunchKernelEx."""

    function: ctypes.c_void_p
    sizes: tuple[int, ...]
    """grid, block and dynamic shared memory"""
    parameters: ctypes.Array[ctypes.c_void_p]
    held: tuple[ParameterBytes, ...]
    """memory that the parameters point to"""


def _content(argument: np.generic | BoundTensorMap) -> ParameterBytes:
    if isinstance(argument, BoundTensorMap):
        return driver_encoded(argument)
    array = np.array(argument)
    return ParameterBytes(array.ctypes.data, array)


_MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # size and alignment of CUtensorMap
_TYPES = {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}  # CU_TENSOR_MAP_DATA_TYPE_
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_
_INTERLEAVE_NONE, _L2_PROMOTION_128B, _ZEROS_OUTSIDE = 0, 2, 0
_KEPT_MAPS = 256


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """A parameter's bytes in host memory."""

    address: int
    holder: object
    """keeps the buffer alive"""


@lru_cache(maxsize=_KEPT_MAPS)
def driver_encoded(bound: BoundTensorMap) -> ParameterBytes:
    """Encode a tensor map. Because encoding takes longer than a launch, the result is cached."""
    tensor = bound.tensor
    memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    address = -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
    rank = len(tensor.global_dim)
    strides = tensor.global_strides_bytes
    described = (
        ctypes.c_void_p(address),
        ctypes.c_int(_TYPES[tensor.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(bound.address),
        (ctypes.c_uint64 * rank)(*tensor.global_dim),
        (ctypes.c_uint64 * max(1, len(strides)))(*strides),
    )
    element_strides = (ctypes.c_uint32 * rank)(*tensor.element_strides)
    how = (_INTERLEAVE_NONE, _SWIZZLES[tensor.swizzle_bytes], _L2_PROMOTION_128B, _ZEROS_OUTSIDE)
    if tensor.im2col:
        corners = ((ctypes.c_int * len(corner))(*corner) for corner in (tensor.lower_corner, tensor.upper_corner))
        box = (ctypes.c_uint32(extent) for extent in tensor.box_dim)
        call("cuTensorMapEncodeIm2col", *described, *corners, *box, element_strides, *how)
    else:
        tile = (ctypes.c_uint32 * rank)(*tensor.box_dim)
        call("cuTensorMapEncodeTiled", *described, tile, element_strides, *how)
    return ParameterBytes(address, memory)
