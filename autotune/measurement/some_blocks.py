"""load -> run some blocks of a kernel on arrays that are larger than this machine's memory.

The arrays are zeros, and take space only where a block writes; the first and last of indices and lengths are test data.
Nothing is compared: a device with sanitizers finds offsets that overflow, and memory that lies outside the arrays.
"""

from __future__ import annotations

import math
from contextlib import ExitStack

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import Device, Variation
from autotune.family.source import KernelSource
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.storage import encoded

_BLOCKS = 32  # of each launch: the first, the last and some between
_DRAWN = 1 << 16  # test data at each end of an array of indices or lengths: the last blocks' offsets are the largest
_MOST_ELEMENTS = 4096  # of the largest array, for each thread of a launch


def run_some_blocks(device: Device, source: KernelSource, binary: Binary) -> None:
    """Leaves out launches whose threads do the work of many. Raises Rejected('runtime' | 'timeout', ...)."""
    with device.varied(Variation(some_blocks=_BLOCKS)), ExitStack() as owned:
        module = device.load(binary)
        owned.callback(module.unload)

        def allocated(size_bytes: int) -> int:
            address = device.allocate(size_bytes)
            owned.callback(device.free, address)
            return address

        arrays = {array.name: allocated(array.size_bytes) for array in source.problem.arrays}
        random = np.random.default_rng(0)
        for array in source.problem.filled:
            if array.fill == "integers":  # a kernel may loop over such a number
                drawn = random.integers(*array.whole_bounds, min(_DRAWN, array.elements), endpoint=True)
                content = encoded(drawn, array.dtype)
                for offset in (0, array.size_bytes - len(content)):
                    device.write(arrays[array.name] + offset, content)
        tensors = Tensors(arrays, allocated(source.packed_w_bytes), allocated(source.workspace_bytes))
        kernel = LoadedKernel(device, module, source)
        kernel.prepare(tensors)
        largest = max(array.elements for array in source.problem.arrays)
        for launch in kernel.forward(tensors):
            if largest <= _MOST_ELEMENTS * math.prod((*launch.grid, *launch.block)):
                kernel.run((launch,))
                device.synchronize()
