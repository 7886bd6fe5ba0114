"""The report of AddressSanitizer or UndefinedBehaviorSanitizer about a kernel on `host:check`, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.compilation.compile import MAX_MESSAGE
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.measurement.guard_bands import GUARD_BYTES, allocated_bytes

_ERROR = re.compile(r"ERROR: AddressSanitizer: ([\w-]+)")
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_FRAME = re.compile(r"^ *#\d+ 0x[0-9a-f]+ in (\S+?)(?:\(.*)? \S*kernel\.cu:(\d+)", re.MULTILINE)
_REGION = re.compile(
    r"is located (\d+) bytes (inside of|after|before|to the right of|to the left of) (\d+)-byte region"
)
_ALLOCATED = re.compile(r"allocated by .*\n *#0 0x[0-9a-f]+ in (\S+)")
_UNDEFINED = re.compile(r"kernel\.cu:(\d+):\d+: runtime error: (.+)")


def explained(rejected: Rejected, source: KernelSource) -> Rejected:
    """The rejection with a sanitizer's report as one line, if a sanitizer ended the worker; otherwise shortened."""
    report = rejected.message
    if undefined := _UNDEFINED.search(report):
        return Rejected(rejected.outcome, "undefined", f"kernel.cu:{undefined[1]}: {undefined[2]}")
    error, access = _ERROR.search(report), _ACCESS.search(report)
    if not error:
        return Rejected(rejected.outcome, rejected.reason, report[:MAX_MESSAGE])
    frame = _FRAME.search(report)
    where = f"kernel.cu:{frame[2]}: {frame[1]}" if frame else source.stages[0].entry
    if not access:
        return Rejected(rejected.outcome, "illegal_address", f"{where}: {error[1]}")
    verb = "reads" if access[1] == "READ" else "writes"
    reason = "oob_read" if access[1] == "READ" else "oob_write"
    place = _place(report, source) or f"memory outside its arrays ({error[1]})"
    return Rejected(rejected.outcome, reason, f"{where} {verb} {access[2]} bytes of {place}")


def _place(report: str, source: KernelSource) -> str:
    """The array next to an address, the side and the distance; empty if unknown."""
    region, allocated = _REGION.search(report), _ALLOCATED.search(report)
    if not region or not allocated:
        return ""
    distance, side, region_bytes = int(region[1]), region[2], int(region[3])
    if "memalign" not in allocated[1]:  # not an array of the device, but a core's copy of shared memory
        declared = ", ".join(dict.fromkeys(f"{s.smem_bytes} ({s.entry})" for s in (*source.prepare, *source.stages)))
        return f"shared memory behind what smem_bytes of its stage declares: {declared}"
    if side == "inside of":  # the guard bands belong to the allocation
        size_bytes, offset = region_bytes - allocated_bytes(0), distance - GUARD_BYTES
    else:
        size_bytes = region_bytes
        offset = -distance if side in ("before", "to the left of") else region_bytes + distance
    name = " or ".join(_named(source, size_bytes)) or "an array"
    return f"the memory {'before' if offset < 0 else 'behind'} {name} ({size_bytes} bytes), at byte {offset}"


def _named(source: KernelSource, size_bytes: int) -> Iterator[str]:
    sizes = {array.name: array.size_bytes for array in source.problem.arrays}
    sizes |= {"workspace": source.workspace_bytes, "packed_w": source.packed_w_bytes}
    yield from (name for name, size in sizes.items() if size == size_bytes)
