"""A tensor map encoded by the driver: `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

from autotune.devices.driver_api import call
from autotune.devices.tensor_map import BoundTensorMap

_MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # of CUtensorMap
_TYPES = {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}  # CU_TENSOR_MAP_DATA_TYPE_
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_
_INTERLEAVE_NONE, _L2_PROMOTION_128B, _ZEROS_OUTSIDE = 0, 2, 0
_KEPT_MAPS = 256


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """The bytes of a parameter in the host's memory."""

    address: int
    holder: object
    """keeps the buffer alive"""


@lru_cache(maxsize=_KEPT_MAPS)
def driver_encoded(bound: BoundTensorMap) -> ParameterBytes:
    """Encode a tensor map, which takes longer than a launch."""
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
