"""Device memory between two guard bands. If a band has changed, a kernel wrote outside the array."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from autotune.devices.device import POISON, Device

OUTPUT_GUARD = 0xFE  # byte of the outputs' guard bands; POISON would hide a value computed from poisoned input
GUARD_BYTES = 1 << 16  # size of each guard band, before and after every array
_ADDRESS = re.compile(r"address (0x[0-9a-f]+)")
_SLACK_BYTES = 256  # additional bytes after the second band, which begins at a word boundary


class GuardedArray:
    """Device memory with a guard band on either side.

    If the device watches the bands (`host:check`), any access to them ends the process, so the bands don't have to be
    compared after a run.
    """

    def __init__(self, device: Device, name: str, size_bytes: int, *, guard: int = POISON) -> None:
        self.device = device
        self.name = name
        self.size_bytes = size_bytes
        self.guard = guard
        self._base = device.allocate(allocated_bytes(size_bytes))
        self.address = self._base + GUARD_BYTES
        self._watched = False
        self.fill_guards()
        behind = self.address + size_bytes
        self._watched = device.hide(self._base, GUARD_BYTES) and device.hide(behind, GUARD_BYTES + _SLACK_BYTES)

    def overwritten(self) -> Iterator[str]:
        """Describe each changed band: the number of changed bytes, and which of them is nearest to the array."""
        if self._watched:
            return
        behind = self.address + self.size_bytes
        for side, address, nearest in (("before", self._base, -1), ("behind", behind, 0)):
            content = np.frombuffer(self.device.read(address, GUARD_BYTES), np.uint8)
            changed = np.flatnonzero(content != self.guard)
            if len(changed):
                offset = address + int(changed[nearest]) - self.address
                yield f"{len(changed)} bytes {side} {self.name} ({self.size_bytes} bytes), the nearest at byte {offset}"

    def fill_guards(self) -> None:
        """Write the guard pattern to both bands."""
        if not self._watched:
            self.device.fill(self._base, self.guard, GUARD_BYTES)
            self.device.fill(self.address + self.size_bytes, self.guard, GUARD_BYTES + 4)

    def poison(self, byte: int = POISON) -> None:
        """Overwrite the array itself with a byte, by default with NaN."""
        if self.size_bytes:
            self.device.fill(self.address, byte, self.size_bytes)

    def free(self) -> None:
        """Free the memory."""
        self.device.free(self._base)


def with_array(message: str, arrays: Sequence[GuardedArray]) -> str:
    """Return the message with addresses inside one of these arrays replaced by the array's name and the byte."""

    def placed(found: re.Match[str]) -> str:
        address = int(found[1], 16)
        for array in arrays:
            if array.address <= address < array.address + array.size_bytes:
                return f"byte {address - array.address} of {array.name}"
        return found[0]

    return _ADDRESS.sub(placed, message)


def allocated_bytes(size_bytes: int) -> int:
    """Return the number of bytes that an array of this size takes up, including its guard bands."""
    return size_bytes + 2 * GUARD_BYTES + _SLACK_BYTES
