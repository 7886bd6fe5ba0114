"""This machine's CPU."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The CPU's name, or its architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return os.uname().machine


def last_cache_bytes() -> int:
    """Size of the last-level cache; 0 if it is unknown."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)
