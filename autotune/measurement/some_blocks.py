"""load -> run some blocks of a kernel on arrays that are larger than this machine's memory.

The arrays are zeros, and take space only where a block writes. Nothing is compared: a device with sanitizers finds
offsets that overflow, and memory that lies outside the arrays.
"""

from __future__ import annotations

from contextlib import ExitStack

from autotune.compilation.compile import Binary
from autotune.devices.device import Device, Variation
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.trial import Outcome

_BLOCKS = 32  # of each launch: the first, the last and some between


def run_some_blocks(device: Device, source: KernelSource, binary: Binary) -> None:
    """Raises Rejected('runtime', ...), unless the kernel merely takes long: a block may do the work of many."""
    with device.varied(Variation(some_blocks=_BLOCKS)), ExitStack() as owned:
        module = device.load(binary)
        owned.callback(module.unload)

        def allocated(size_bytes: int) -> int:
            address = device.allocate(size_bytes)
            owned.callback(device.free, address)
            return address

        arrays = {array.name: allocated(array.size_bytes) for array in source.problem.arrays}
        tensors = Tensors(arrays, allocated(source.packed_w_bytes), allocated(source.workspace_bytes))
        kernel = LoadedKernel(device, module, source)
        try:
            kernel.prepare(tensors)
            for launch in kernel.forward(tensors):
                kernel.run((launch,))
                device.synchronize()
        except Rejected as rejected:
            if rejected.outcome != Outcome.TIMEOUT:
                raise
