"""Find processes by a mark in their environment, kill them, and find a port for a server that restarts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from pathlib import Path

MARK = "AUTOTUNE_TEST_MARK"
_LOOK_S = 0.4  # seconds for which a process is watched before it counts as busy


def busy_factor() -> float:
    """How many times as long as on an idle machine a process may take for the same work, by the load of its cores."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def port_for_restarts() -> int:
    """Return a free port of 127.0.0.1 outside the range from which Linux assigns ports to outgoing connections.

    A client that keeps connecting to a port of that range while no server listens there can be assigned the same port.
    It is then connected to itself, and the server cannot listen there again.
    """
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    while True:
        port = random.randrange(10000, int(first))
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def marked(mark: str) -> dict[int, str]:
    """Process number to command line of the running processes with a mark."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def removing_leftovers(mark: str, patience_s: float) -> bool:
    """Whether all of them end within some seconds."""
    until = time.monotonic() + patience_s
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return not left


def kill_device_worker(mark: str, patience_s: float, spinning_s: float = 3.0) -> None:
    """Kill the worker whose kernel does not end with SIGKILL, as the kernel's out-of-memory killer does.

    It is the worker that was busy for `spinning_s`, which is longer than the verification of any correct kernel.
    """
    until = time.monotonic() + patience_s
    busy: dict[int, int] = {}
    while time.monotonic() < until:
        before = {number: _ticks(number) for number in marked(mark) if _has_device(number)}
        time.sleep(_LOOK_S)
        working = [
            number
            for number, ticks in before.items()
            if _ticks(number) - ticks > 0.1 * _LOOK_S * os.sysconf("SC_CLK_TCK")
        ]
        busy = {number: busy.get(number, 0) + 1 for number in working}
        for number, looks in busy.items():
            if looks * _LOOK_S > spinning_s:
                os.kill(number, signal.SIGKILL)
                return
    raise TimeoutError("no worker is busy")


def _has_device(number: int) -> bool:
    """Whether a process has a host kernel or the CUDA driver mapped: compilers have neither."""
    try:
        maps = Path(f"/proc/{number}/maps").read_text()
    except OSError:
        return False
    return "memfd:autotune-kernel" in maps or "libcuda.so" in maps


def _ticks(number: int) -> int:
    """CPU time of a process so far, without its children; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
