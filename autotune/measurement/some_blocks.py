"""load -> run some of a kernel's blocks on arrays that are larger than this machine's memory.

The arrays are filled with zeros and take up memory only where a block writes. Arrays of indices and lengths have test
data at both ends. A device with sanitizers finds signed offsets that overflow and accesses outside the arrays. Offsets
that wrap at 2^32 are found by a second run with NaN at the wrapped offsets: the last outputs must not change.
"""

from __future__ import annotations

import math
from contextlib import ExitStack

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import Device, Variation
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.storage import encoded
from autotune.trial import Outcome

_BLOCKS = 32  # number of blocks to run in each launch: the first, the last and some in between
_DRAWN = 1 << 16  # elements of test data at each end of an array; the last blocks have the largest offsets
_NAN_BYTE = 0xFF
_WRAP = 1 << 32  # offset that is 0 in 32 bits
_WRAPPED = 1 << 22  # number of elements to fill with NaN
_MOST_ELEMENTS = 4096  # maximum number of elements of the largest array per thread of a launch


def run_some_blocks(device: Device, source: KernelSource, binary: Binary) -> None:
    """Run some blocks of each launch, except launches with so few threads that each one handles too many elements.

    Raises Rejected('runtime' | 'timeout', ...), and Rejected('wrong_result', 'wrong') if an offset wraps.
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

        def last_outputs() -> list[bytes]:
            for launch in kernel.forward(tensors):
                if largest <= _MOST_ELEMENTS * math.prod((*launch.grid, *launch.block)):
                    kernel.run((launch,))
                    device.synchronize()
            outputs = [
                (arrays[array.name], array.size_bytes) for array in source.problem.outputs if array.role == "out"
            ]
            ends = [(address + size, min(size, _DRAWN)) for address, size in outputs]
            return [device.read(end - size, size) for end, size in ends]

        before = last_outputs()
        wrapped = [
            array
            for array in source.problem.filled
            if array.grows and array.elements > _WRAP and array.fill != "integers"
        ]
        for array in wrapped:
            element_bytes = array.size_bytes // array.elements
            for period in (_WRAP, _WRAP // element_bytes):  # elements after which an offset in elements or bytes is 0
                end = array.elements % period
                unit = array.elements // source.problem.runtime_size  # the last outputs may need all of their unit
                elements = min(end, _WRAPPED) if end <= array.elements - unit else 0
                device.fill(arrays[array.name] + (end - elements) * element_bytes, _NAN_BYTE, elements * element_bytes)
        if wrapped and last_outputs() != before:
            names = " or ".join(array.name for array in wrapped)
            where = f"elements of {names} that are 2^32 elements or bytes before those that they need"
            message = f"the last outputs depend on {where}: an offset has too few bits"
            raise Rejected(Outcome.WRONG_RESULT, "wrong", message)
