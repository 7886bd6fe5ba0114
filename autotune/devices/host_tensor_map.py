"""Encode tensor maps for kernels on the CPU, as TensorMap of autotune_host_tma.h."""

from __future__ import annotations

import ctypes

from autotune.devices.tensor_map import ELEMENT_BYTES, BoundTensorMap
from autotune.errors import Rejected
from autotune.trial import Outcome

_ALIGNMENT = 16  # bytes, of an array that has a tensor map


class HostTensorMap(ctypes.Structure):
    """The counterpart of CUtensorMap."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("global_dim", ctypes.c_int64 * 5),
        ("box_dim", ctypes.c_uint16 * 5),
        ("element_strides", ctypes.c_uint16 * 5),
        ("lower_corner", ctypes.c_int16 * 3),
        ("upper_corner", ctypes.c_int16 * 3),
        ("rank", ctypes.c_uint8),
        ("element_bytes", ctypes.c_uint8),
        ("swizzle_bytes", ctypes.c_uint8),
        ("im2col", ctypes.c_uint8),
        ("tf32", ctypes.c_uint8),
        ("spare", ctypes.c_uint8 * 43),
    )


def encode(bound: BoundTensorMap) -> bytes:
    """A tensor map of an array. Raises Rejected('runtime', 'launch_failure', ...) for one that a driver refuses."""
    tensor = bound.tensor
    refusal = tensor.refusal()
    if bound.address == 0 or bound.address % _ALIGNMENT:
        refusal = refusal or f"a tensor map takes addresses of multiples of {_ALIGNMENT}, not {bound.address:#x}"
    if refusal:
        raise Rejected(Outcome.RUNTIME, "launch_failure", refusal)
    encoded = HostTensorMap(
        address=bound.address,
        global_dim=tensor.global_dim,
        box_dim=tensor.box_dim,
        element_strides=tensor.element_strides,
        lower_corner=tensor.lower_corner,
        upper_corner=tensor.upper_corner,
        rank=len(tensor.global_dim),
        element_bytes=ELEMENT_BYTES[tensor.dtype],
        swizzle_bytes=tensor.swizzle_bytes,
        im2col=tensor.im2col,
        tf32=tensor.dtype == "tf32",
    )
    return bytes(encoded)
