"""Ask the CUDA driver about this machine's GPUs, without PyCUDA."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass

from autotune.autotune_runtime.driver import DriverError, call, libcuda
from autotune.devices.device import DeviceInfo
from autotune.errors import DeviceError


def has_libcuda() -> bool:
    """Return whether this machine has an NVIDIA driver's library."""
    try:
        libcuda()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class DriverHere:
    """This machine's driver."""

    cuda: str
    """the newest CUDA version that the driver supports, such as 13.0"""
    devices: tuple[str, ...]
    """names of the GPUs, in CUDA's order; empty if there are none or the driver does not start"""


def driver_here() -> DriverHere | None:
    """Return this machine's driver, or None if there is no libcuda.so.1."""
    if not has_libcuda():
        return None
    version, count, names = ctypes.c_int(0), ctypes.c_int(0), []
    with suppress(DriverError):
        call("cuDriverGetVersion", ctypes.byref(version))
        call("cuInit", 0)
        call("cuDeviceGetCount", ctypes.byref(count))
        names = [_name(ctypes.c_int(number)) for number in range(count.value)]
    return DriverHere(f"{version.value // 1000}.{version.value % 1000 // 10}", tuple(names))


def _name(device: ctypes.c_int) -> str:
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), device)
    return name.value.decode(errors="replace")


def device_info(number: int) -> DeviceInfo:
    """Return a GPU's identity and limits. Raises DeviceError if there is no driver or no such GPU."""
    count, device, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    try:
        call("cuInit", 0)
        call("cuDeviceGetCount", ctypes.byref(count))
        if number >= count.value:
            raise DeviceError(
                f"cuda:{number}: this machine has {count.value} CUDA device(s), cuda:0 to cuda:{count.value - 1}"
            )
        call("cuDeviceGet", ctypes.byref(device), number)
        name = _name(device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        found = {attribute: _attribute(attribute, device) for attribute in _ATTRIBUTES}
    except OSError:
        raise DeviceError("this machine has no NVIDIA driver (libcuda.so.1)") from None
    except DriverError as error:
        raise DeviceError(f"cuda:{number}: the NVIDIA driver does not answer: {error}") from None
    return DeviceInfo(
        kind="cuda",
        name=name,
        arch=10 * found["compute_capability_major"] + found["compute_capability_minor"],
        sm_count=found["multiprocessor_count"],
        memory_bytes=memory.value,
        max_threads_per_block=found["max_threads_per_block"],
        smem_per_block_bytes=found["max_shared_memory_per_block_optin"],
        smem_per_sm_bytes=found["max_shared_memory_per_multiprocessor"],
        registers_per_sm=found["max_registers_per_multiprocessor"],
        max_warps_per_sm=found["max_threads_per_multiprocessor"] // found["warp_size"],
        max_blocks_per_sm=found["max_blocks_per_multiprocessor"],
        constant_bytes=found["total_constant_memory"],
        l2_bytes=found["l2_cache_size"],
        grid_limits=(found["max_grid_dim_x"], found["max_grid_dim_y"], found["max_grid_dim_z"]),
        block_limits=(found["max_block_dim_x"], found["max_block_dim_y"], found["max_block_dim_z"]),
    )


def _attribute(name: str, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), _ATTRIBUTES[name], device)
    return value.value


_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_block_dim_x": 2,
    "max_block_dim_y": 3,
    "max_block_dim_z": 4,
    "max_grid_dim_x": 5,
    "max_grid_dim_y": 6,
    "max_grid_dim_z": 7,
    "total_constant_memory": 9,
    "warp_size": 10,
    "multiprocessor_count": 16,
    "l2_cache_size": 38,
    "max_threads_per_multiprocessor": 39,
    "compute_capability_major": 75,
    "compute_capability_minor": 76,
    "max_shared_memory_per_multiprocessor": 81,
    "max_registers_per_multiprocessor": 82,
    "max_shared_memory_per_block_optin": 97,
    "max_blocks_per_multiprocessor": 106,
}
"""Values of the enumerators CU_DEVICE_ATTRIBUTE_* in cuda.h."""
