"""load -> run some of a kernel's blocks on arrays that are larger than this machine's memory.

The arrays are filled with zeros and take up memory only where a block writes. Arrays of indices and lengths have test
data at both ends. A device with sanitizers finds signed offsets that overflow and accesses outside the arrays. Offsets
of inputs that wrap at 2^32 are found by a second run with NaN at the wrapped offsets: the last outputs must not change.
Offsets of outputs that wrap leave the last outputs unwritten, although the same kernel writes them in smaller arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import Device, Module, Variation
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.storage import encoded
from autotune.trial import Outcome

_BLOCKS = 32  # number of blocks to run in each launch: the first, the last and some in between
_DRAWN = 1 << 16  # elements of test data at each end of an array; the last blocks have the largest offsets
_NAN_BYTE = 0xFF
_UNWRITTEN = b"\xa5" * 8  # the end of an output before a run: no number that a kernel computes from zeros
_WRAP = 1 << 32  # offset that is 0 in 32 bits
_WRAPPED = 1 << 22  # number of elements to fill with NaN
_MOST_ELEMENTS = 4096  # maximum number of elements of the largest array per thread of a launch


def run_some_blocks(
    device: Device, source: KernelSource, binary: Binary, large: Sequence[KernelSource], small: Sequence[KernelSource]
) -> None:
    """Run some blocks of each launch.

    If units are independent, launches are left out that have so few threads that each one handles too many elements.
    `large` and `small` are the same kernel with other run-time sizes, and arrays that are as large or far smaller.

    Raises Rejected('runtime' | 'timeout', ...), and Rejected('wrong_result', 'wrong') if an offset wraps.
    """
    with device.varied(Variation(some_blocks=_BLOCKS)), ExitStack() as owned:
        module = device.load(binary)
        owned.callback(module.unload)
        unwritten = _unwritten(device, module, source)
        for other in large if unwritten else ():
            unwritten &= _unwritten(device, module, other)
        for other in small if unwritten else ():
            unwritten -= _unwritten(device, module, other)
        if unwritten and small:
            sizes = ", ".join(other.problem.at_runtime for other in small)
            names = " and ".join(sorted(unwritten))
            message = f"the last element of {names} is not written, although it is for {sizes}: an offset wraps around"
            raise Rejected(Outcome.WRONG_RESULT, "wrong", message)


def _unwritten(device: Device, module: Module, source: KernelSource) -> set[str]:
    """Run some blocks, and return the outputs whose last element they don't write."""
    with ExitStack() as owned:

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
        outputs = [array for array in source.problem.outputs if array.role == "out"]
        ends = {array.name: _UNWRITTEN[: array.size_bytes // array.elements] for array in outputs}
        for array in outputs:
            device.write(arrays[array.name] + array.size_bytes - len(ends[array.name]), ends[array.name])
        tensors = Tensors(arrays, allocated(source.packed_w_bytes), allocated(source.workspace_bytes))
        kernel = LoadedKernel(device, module, source)
        kernel.prepare(tensors)
        largest = max(array.elements for array in source.problem.arrays)

        def last_outputs() -> dict[str, bytes]:
            for launch in kernel.forward(tensors):
                elements = _MOST_ELEMENTS * math.prod((*launch.grid, *launch.block))
                if largest <= elements or not source.problem.operation.independent:
                    kernel.run((launch,))
                    device.synchronize()
            sizes = {array.name: min(array.size_bytes, _DRAWN) for array in outputs}
            found = [arrays[array.name] + array.size_bytes for array in outputs]
            return {name: device.read(end - size, size) for end, (name, size) in zip(found, sizes.items(), strict=True)}

        before = last_outputs()
        wrapped = [
            array
            for array in source.problem.filled
            if source.problem.operation.independent
            and array.grows
            and array.elements > _WRAP
            and array.fill != "integers"
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
            where = f"elements of {names} that lie 2^32 elements or bytes too early"
            message = f"the last outputs depend on {where}: an offset wraps around"
            raise Rejected(Outcome.WRONG_RESULT, "wrong", message)
        return {name for name, end in ends.items() if before[name].endswith(end)}
