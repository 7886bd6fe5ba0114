"""Run a config of a family in check mode on arrays between bytes that it may not touch:

`python -m tests.templates.bounded FAMILY PROBLEM CONFIG`, the latter two in JSON. It is a process of its own, because
AddressSanitizer must be loaded from the start and ends the process at the first error.
"""

from __future__ import annotations

import ctypes
import json
import sys

import numpy as np

from autotune.compilation.compile import Target
from autotune.compilation.toolchain import find_cxx
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.compiled import compiled, host_device

from .shipped_families import family

BESIDE = 256  # bytes before and after an array that may not be touched; a multiple of the arrays' alignment


def main() -> None:
    """Run it once."""
    name, problem, values = sys.argv[1], Conv2dProblem(**json.loads(sys.argv[2])), json.loads(sys.argv[3])
    device = host_device(str(find_cxx()))
    poison = ctypes.CDLL(None).__asan_poison_memory_region

    def enclosed(size_bytes: int) -> int:
        at = device.allocate(BESIDE + size_bytes + BESIDE) + BESIDE
        device.fill(at, 0, size_bytes)
        poison(ctypes.c_void_p(at - BESIDE), ctypes.c_size_t(BESIDE))
        poison(ctypes.c_void_p(at + size_bytes), ctypes.c_size_t(BESIDE))
        return at

    source = render(BoundTemplate(family(name), problem, device.info), Config.of(name, values))
    binary = compiled(source.program, Target("host", check=True), cxx=str(find_cxx()))
    arrays = {array.name: enclosed(array.size_bytes) for array in problem.arrays}
    ones = np.ones(problem.k, np.uint16 if problem.element_bytes == 2 else np.uint32)
    device.write(arrays["bias"], ones.tobytes())
    kernel = LoadedKernel(device, device.load(binary), source)
    tensors = Tensors(arrays, device.allocate(source.packed_w_bytes))
    kernel.prepare(tensors)
    kernel.run(kernel.forward(tensors))
    outputs = np.frombuffer(device.read(arrays["y"], problem.output.size_bytes), ones.dtype)
    if (outputs != 1).any():
        raise AssertionError(f"{(outputs != 1).sum()} of {outputs.size} outputs are not the bias")


if __name__ == "__main__":
    main()
