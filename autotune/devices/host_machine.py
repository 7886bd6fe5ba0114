"""Properties of this machine's CPU, and the CPU time used by processes."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """Return the CPU's name, or its architecture if the name is unknown."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return os.uname().machine


def process_seconds(process: int) -> float:
    """Return a process's CPU time in seconds, or 0 if it has ended."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(process, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def tree_seconds(process: int) -> float:
    """Return the CPU time in seconds of a process and all its descendants, including those that have ended."""
    parents, used = {}, {}
    for own in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):  # the process has ended
            text = Path(f"/proc/{own}/stat").read_text()
            fields = text.rpartition(")")[2].split()  # from the third field on: proc_pid_stat(5)
            parents[own], used[own] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {process}
    while grown := {own for own, parent in parents.items() if parent in tree} - tree:
        tree |= grown
    return sum(used.get(own, 0) for own in tree) / os.sysconf("SC_CLK_TCK")


def last_cache_bytes() -> int:
    """Return the size of the last-level cache in bytes, or 0 if it is unknown."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)
