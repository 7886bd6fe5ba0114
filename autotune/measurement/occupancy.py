"""A kernel's theoretical occupancy: the resident warps of a multiprocessor, divided by the maximum.

The formula is from cuda_occupancy.h, for compute capability 7.0 and newer. Registers are allocated per warp in units of
256, in four subpartitions. Shared memory is allocated in units of 128 bytes, with 1 KiB reserved for each block. On
GPUs older than 8.0, the unit is 256 bytes, and nothing is reserved.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.devices.device import DeviceInfo

WARP = 32  # threads
_SUBPARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Residency:
    """The number of a kernel's blocks and warps that are resident on a multiprocessor, and the resources that limit
    them.
    """

    blocks: int
    warps: int
    occupancy: float
    """resident warps divided by the maximum, 0 to 1"""
    limits: tuple[str, ...]
    """the resources that allow no further block: registers, shared memory, warps, blocks"""


def residency(device: DeviceInfo, *, threads: int, registers: int, smem_bytes: int) -> Residency:
    """Return the blocks and warps that can be resident on a multiprocessor, or 0 if not even one block fits."""
    warps = -(-threads // WARP)
    per_warp = -(-registers * WARP // 256) * 256
    reserved, unit = (1024, 128) if device.arch >= 80 else (0, 256)
    allocated = -(-(smem_bytes + reserved) // unit) * unit
    most = {
        "registers": device.registers_per_sm // _SUBPARTITIONS // per_warp * _SUBPARTITIONS // warps
        if per_warp
        else None,
        "shared memory": device.smem_per_sm_bytes // allocated if allocated else None,
        "warps": device.max_warps_per_sm // warps,
        "blocks": device.max_blocks_per_sm,
    }
    blocks = min(allowed for allowed in most.values() if allowed is not None)
    limits = tuple(name for name, allowed in most.items() if allowed == blocks)
    return Residency(blocks, blocks * warps, blocks * warps / device.max_warps_per_sm, limits)
