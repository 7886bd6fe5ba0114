"""What `autotune profile` has a profiler watch, `python -m autotune.evaluation.profiled JOB`: one kernel, once.

A process of its own with nothing else on the device, since a profiler stops at every launch.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.opening import open_device
from autotune.family.source import KernelSource
from autotune.measurement.forward import LoadedKernel, Tensors
from autotune.measurement.network import encoded

_DRAWN = 1 << 24  # random numbers drawn for an array; a longer one repeats them


Job = tuple[str, KernelSource, Binary]
"""A device's name, a kernel and its binary; written by `profile` as a pickle."""


def launch_once(name: str, source: KernelSource, binary: Binary) -> None:
    """Launch every stage once, of the first round where the kernel has several."""
    device, problem = open_device(name), source.problem
    random = np.random.default_rng(0)

    def filled(elements: int) -> int:
        drawn = random.standard_normal(min(elements, _DRAWN), dtype=np.float32)
        content = encoded(np.resize(drawn, elements), problem.dtype)
        address = device.allocate(len(content))
        device.write(address, content)
        return address

    tensors = Tensors(
        x=filled(problem.x_elements),
        w=filled(problem.w_elements),
        bias=filled(problem.k),
        y=device.allocate(problem.y_elements * problem.element_bytes),
        packed_w=device.allocate(source.packed_w_bytes),
        workspace=device.allocate(source.workspace_bytes),
    )
    module = device.load(binary)
    kernel = LoadedKernel(device, module, source, weight_bytes=problem.w_elements * problem.element_bytes)
    kernel.prepare(tensors)
    launches = kernel.forward(tensors)[: len(source.stages)]
    kernel.run(launches)
    device.synchronize()
    module.unload()
    device.close()


def main() -> None:
    """Read the job that `profile` wrote a moment ago."""
    job: Job = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - a file of our own, in a folder of our own
    launch_once(*job)


if __name__ == "__main__":
    main()
