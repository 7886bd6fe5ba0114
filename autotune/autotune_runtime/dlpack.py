"""An array's description by the DLPack protocol, in the terms of `__cuda_array_interface__`."""

from __future__ import annotations

import ctypes
from typing import Any

_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_TYPESTRS = {(2, 32): "<f4", (2, 16): "<f2", (4, 16): "<V2", (0, 32): "<i4", (1, 8): "|u1"}
"""By kDLInt, kDLUInt, kDLFloat, kDLBfloat and bits."""


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def described(array: Any) -> dict[str, Any] | None:
    """Shape, typestr, strides in bytes, address and device of an array in a GPU's memory; None for any other.

    The array must be ready on the stream on which it is used: this function does not wait.
    """
    if not hasattr(array, "__dlpack__"):
        return None
    kind, device = array.__dlpack_device__()
    if int(kind) not in _CUDA:
        return None
    capsule = array.__dlpack__(stream=-1)  # deleting it frees its references; the array stays
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer_of(capsule, b"dltensor"))
    typestr = _TYPESTRS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    typestr = typestr or f"|V{tensor.bits * tensor.lanes // 8}"
    strides = None
    if tensor.strides:
        strides = tuple(int(stride) * tensor.bits // 8 for stride in tensor.strides[: tensor.ndim])
    return {
        "shape": tuple(tensor.shape[: tensor.ndim]),
        "typestr": typestr,
        "strides": strides,
        "data": ((tensor.data or 0) + tensor.byte_offset, False),
        "device": int(device),
    }
