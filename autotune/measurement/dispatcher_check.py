"""load -> choose: run a compiled dispatcher on a device to find out which kernel it chooses for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import Device, Launch

_BLOCK = 64  # threads per block, one per layer


@dataclass(frozen=True, slots=True)
class ChoicesRequest:
    """Run a compiled dispatcher for each row in a table of layers. Answer: Choices."""

    binary: Binary
    """a program with the entry (table, choices, count)"""
    table: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """The position of the kernel chosen for each row, or -1 if no kernel supports the layer."""

    positions: tuple[int, ...]


def choices(device: Device, request: ChoicesRequest) -> Choices:
    """Load a dispatcher, run it for each layer, and return the choices."""
    table = np.array(request.table, dtype=np.int64)
    count = len(table)
    with ExitStack() as owned:
        module = device.load(request.binary)
        owned.callback(module.unload)

        def array(size_bytes: int) -> int:
            address = device.allocate(size_bytes)
            owned.callback(device.free, address)
            return address

        rows, chosen = array(table.nbytes), array(4 * count)
        device.write(rows, table.tobytes())
        args = (np.uint64(rows), np.uint64(chosen), np.int32(count))
        (entry,) = request.binary.entries
        module.launch(Launch(entry, (-(-count // _BLOCK), 1, 1), (_BLOCK, 1, 1), 0, args))
        device.synchronize()
        positions: Sequence[int] = np.frombuffer(device.read(chosen, 4 * count), np.int32).tolist()
    return Choices(tuple(positions))
