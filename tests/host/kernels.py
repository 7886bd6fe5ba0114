"""Runs a piece of CUDA text on arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotune.compilation.compile import Program
from autotune.devices.device import Launch, Order, Variation
from autotune.devices.host import HostDevice, HostModule
from tests.compiled import compiled

Array = npt.NDArray[np.generic]
Size = int | tuple[int, int, int]


class Bench:
    """One host device and the programs loaded into it."""

    def __init__(self, device: HostDevice, cxx: str) -> None:
        self.device = device
        self.cxx = cxx

    def load(self, text: str, *entries: str, flags: tuple[str, ...] = ()) -> HostModule:
        """Compile and load a program."""
        return self.device.load(compiled(Program(text, entries, flags), cxx=self.cxx))

    def run(
        self,
        text: str | HostModule,
        entry: str,
        arguments: Sequence[Array | np.generic],
        *,
        grid: Size = 1,
        block: Size = 1,
        smem_bytes: int = 0,
        order: Order = "ascending",
    ) -> tuple[Array, ...]:
        """Run one kernel; every array is copied in and comes back as the kernel left it."""
        module = self.load(text, entry) if isinstance(text, str) else text
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        addresses = [self.device.allocate(array.nbytes) for array in arrays]
        try:
            for address, array in zip(addresses, arrays, strict=True):
                self.device.write(address, array.tobytes())
            places = iter(addresses)
            args = tuple(np.uint64(next(places)) if isinstance(a, np.ndarray) else a for a in arguments)
            with self.device.varied(Variation(order)):
                module.launch(Launch(entry, _triple(grid), _triple(block), smem_bytes, args))
            return tuple(
                np.frombuffer(self.device.read(address, array.nbytes), array.dtype).reshape(array.shape)
                for address, array in zip(addresses, arrays, strict=True)
            )
        finally:
            for address in addresses:
                self.device.free(address)
            if isinstance(text, str):
                module.unload()


def _triple(size: Size) -> tuple[int, int, int]:
    return (size, 1, 1) if isinstance(size, int) else size
