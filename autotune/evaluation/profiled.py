"""What `autotune profile` has a profiler watch, `python -m autotune.evaluation.profiled JOB`: kernels, each once.

A process of its own with nothing else on the device, since a profiler stops at every launch.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.opening import open_device
from autotune.family.source import KernelSource
from autotune.measurement.forward import LoadedKernel, Tensors
from autotune.measurement.network import encoded

_DRAWN = 1 << 24  # random numbers drawn for an array; a longer one repeats them


Kernel = tuple[KernelSource, Binary]
Job = tuple[str, tuple[Kernel, ...]]
"""A device's name and kernels of one problem; written by `analysis.profile` as a pickle."""


def launch_once(name: str, kernels: Sequence[Kernel]) -> None:
    """Launch every stage of each kernel once, of the first round where a kernel has several. All on the same arrays."""
    device, problem = open_device(name), kernels[0][0].problem
    random = np.random.default_rng(0)

    def filled(elements: int) -> int:
        drawn = random.standard_normal(min(elements, _DRAWN), dtype=np.float32)
        content = encoded(np.resize(drawn, elements), problem.dtype)
        address = device.allocate(len(content))
        device.write(address, content)
        return address

    arrays = Tensors(
        x=filled(problem.x_elements),
        w=filled(problem.w_elements),
        bias=filled(problem.k),
        y=device.allocate(problem.y_elements * problem.element_bytes),
    )
    for source, binary in kernels:
        own = (device.allocate(source.packed_w_bytes), device.allocate(source.workspace_bytes))
        tensors = replace(arrays, packed_w=own[0], workspace=own[1])
        module = device.load(binary)
        kernel = LoadedKernel(device, module, source, weight_bytes=problem.w_elements * problem.element_bytes)
        kernel.prepare(tensors)
        kernel.run(kernel.forward(tensors)[: len(source.stages)])
        device.synchronize()
        module.unload()
        for address in own:
            device.free(address)
    device.close()


def main() -> None:
    """Read the job that `profile` wrote a moment ago."""
    job: Job = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - a file of our own, in a folder of our own
    launch_once(*job)


if __name__ == "__main__":
    main()
