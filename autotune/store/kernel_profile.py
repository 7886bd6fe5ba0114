"""What a profiler counts of one launch of a kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The counters of one launch; None if the device has no such counter. Fractions are 0 to 1."""

    tool: str
    """name and version of the profiler"""
    position: int
    """position of the launch in one forward pass"""
    entry: str
    time_us: float | None = None
    achieved_occupancy: float | None = None
    """mean resident warps divided by the maximum"""
    load_sectors_per_request: float | None = None
    """32-byte sectors that a warp's global load touches; 4 is a full row of floats"""
    store_sectors_per_request: float | None = None
    load_efficiency_fraction: float | None = None
    """bytes used divided by the bytes of the sectors touched"""
    store_efficiency_fraction: float | None = None
    shared_efficiency_fraction: float | None = None
    shared_load_conflicts: float | None = None
    """additional passes because of bank conflicts"""
    shared_store_conflicts: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    l2_bytes: float | None = None
    fma_utilisation_fraction: float | None = None
    """relative to the peak of the pipe while a multiprocessor is active"""
    tensor_utilisation_fraction: float | None = None
    l1_hit_fraction: float | None = None
    """of the sectors that global accesses request from the L1 cache"""
    l2_hit_fraction: float | None = None
    sm_throughput_fraction: float | None = None
    """of the peak of the SM's busiest unit, over the whole launch"""
    memory_throughput_fraction: float | None = None
    """of the peak of the busiest of L1, L2 and device memory"""
    issue_fraction: float | None = None
    """cycles of a scheduler in which it issues an instruction"""
    active_threads: float | None = None
    """per executed warp instruction; 32 without divergence"""
    shared_load_wavefronts: float | None = None
    """passes of shared-memory loads, of at most 128 bytes each"""
    stalls: tuple[tuple[str, float], ...] = ()
    """reason to the average number of warps stalled for it, per issued instruction; largest first"""
