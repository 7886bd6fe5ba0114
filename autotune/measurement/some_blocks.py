"""load -> run some of a kernel's blocks on arrays that are larger than this machine's memory.

The arrays are filled with zeros and take up memory only where a block writes. Arrays of indices and lengths have test
data at both ends. The outputs aren't compared, but a device with sanitizers finds overflowing offsets and accesses
outside the arrays.
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

_BLOCKS = 32  # number of blocks to run in each launch: the first, the last and some between
_DRAWN = 1 << 16  # elements of test data at each end of an array; the last blocks have the largest offsets
_MOST_ELEMENTS = 4096  # maximum elements of the largest array per thread of a launch


def run_some_blocks(device: Device, source: KernelSource, binary: Binary) -> None:
    """Run some blocks of each launch, except launches with so few threads that each one handles too many elements.

    Raises Rejected('runtime' | 'timeout', ...).
    """
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
