"""Theoretical occupancy of a kernel: resident warps of one multiprocessor over the most it can hold.

The formula is that of cuda_occupancy.h for compute capability 7.0 and newer: registers are handed out to a warp in
units of 256 and divided over four subpartitions, shared memory in units of 128 bytes (with 1 KiB reserved a block
from 8.0 on, units of 256 and none before).
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.devices.device import DeviceInfo

WARP = 32  # threads
_SUBPARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Residency:
    """What one multiprocessor holds of a kernel at once, and what stands in the way of more."""

    blocks: int
    warps: int
    occupancy: float
    """resident warps over the most, 0 to 1"""
    limits: tuple[str, ...]
    """each of registers, shared memory, warps and blocks that allows no further block"""


def residency(device: DeviceInfo, *, threads: int, registers: int, smem_bytes: int) -> Residency:
    """Blocks and warps that one multiprocessor holds at once; none when a block does not fit at all."""
    warps = -(-threads // WARP)
    per_warp = -(-registers * WARP // 256) * 256
    reserved, unit = (1024, 128) if device.arch >= 80 else (0, 256)
    taken = -(-(smem_bytes + reserved) // unit) * unit
    most = {
        "registers": device.registers_per_sm // _SUBPARTITIONS // per_warp * _SUBPARTITIONS // warps
        if per_warp
        else None,
        "shared memory": device.smem_per_sm_bytes // taken if taken else None,
        "warps": device.max_warps_per_sm // warps,
        "blocks": device.max_blocks_per_sm,
    }
    blocks = min(allowed for allowed in most.values() if allowed is not None)
    limits = tuple(name for name, allowed in most.items() if allowed == blocks)
    return Residency(blocks, blocks * warps, blocks * warps / device.max_warps_per_sm, limits)


def occupancy(device: DeviceInfo, *, threads: int, registers: int, smem_bytes: int) -> float:
    """Resident warps over the multiprocessor's most, 0 to 1."""
    return residency(device, threads=threads, registers=registers, smem_bytes=smem_bytes).occupancy
