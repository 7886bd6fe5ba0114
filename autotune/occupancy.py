"""Theoretical occupancy of a kernel: resident warps of one multiprocessor over the most it can hold.

The formula is that of cuda_occupancy.h for compute capability 7.0 and newer: registers are handed out to a warp in
units of 256 and divided over four subpartitions, shared memory in units of 128 bytes (with 1 KiB reserved a block
from 8.0 on, units of 256 and none before).
"""

from __future__ import annotations

from autotune.device import DeviceInfo

WARP = 32  # threads
_SUBPARTITIONS = 4


def resident_blocks(device: DeviceInfo, *, threads: int, registers: int, smem_bytes: int) -> int:
    """Blocks that one multiprocessor holds at once; 0 when a block does not fit at all."""
    warps = -(-threads // WARP)
    by_warps = device.max_warps_per_sm // warps
    per_warp = -(-registers * WARP // 256) * 256
    by_registers = device.max_blocks_per_sm
    if per_warp:
        warps_per_subpartition = device.registers_per_sm // _SUBPARTITIONS // per_warp
        by_registers = warps_per_subpartition * _SUBPARTITIONS // warps
    reserved, unit = (1024, 128) if device.arch >= 80 else (0, 256)
    taken = -(-(smem_bytes + reserved) // unit) * unit
    by_smem = device.smem_per_sm_bytes // taken if taken else device.max_blocks_per_sm
    return min(device.max_blocks_per_sm, by_warps, by_registers, by_smem)


def occupancy(device: DeviceInfo, *, threads: int, registers: int, smem_bytes: int) -> float:
    """Resident warps over the multiprocessor's most, 0 to 1."""
    warps = -(-threads // WARP)
    blocks = resident_blocks(device, threads=threads, registers=registers, smem_bytes=smem_bytes)
    return blocks * warps / device.max_warps_per_sm
