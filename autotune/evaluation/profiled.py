"""What a profiler or a sanitizer watches, `python -m autotune.evaluation.profiled JOB`: one kernel, each size once.

A process of its own with nothing else on the device, since both stop at every launch. Every array has the bytes that
the kernel was promised, and nothing around them that it might touch unseen.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import Device
from autotune.devices.opening import open_device
from autotune.family.source import KernelSource
from autotune.measurement.forward import LoadedKernel, Tensors
from autotune.measurement.network import encoded

_DRAWN = 1 << 24  # random numbers drawn for an array; a longer one repeats them


@dataclass(frozen=True, slots=True)
class Job:
    """What is launched; written as a pickle."""

    device: str
    sources: tuple[KernelSource, ...]
    """one kernel for several numbers of images"""
    binary: Binary
    first_round: bool
    """leave out all rounds of a kernel's stages but the first"""


def launch_once(device: Device, source: KernelSource, binary: Binary, *, first_round: bool) -> None:
    """Launch a kernel's stages on arrays of its own."""
    problem = source.problem
    random = np.random.default_rng(0)
    owned: list[int] = []

    def empty(size_bytes: int) -> int:
        owned.append(device.allocate(size_bytes))
        return owned[-1]

    def filled(elements: int) -> int:
        drawn = random.standard_normal(min(elements, _DRAWN), dtype=np.float32)
        content = encoded(np.resize(drawn, elements), problem.dtype)
        address = empty(len(content))
        device.write(address, content)
        return address

    tensors = Tensors(
        x=filled(problem.x_elements),
        w=filled(problem.w_elements),
        bias=filled(problem.k),
        y=empty(problem.y_elements * problem.element_bytes),
        packed_w=empty(source.packed_w_bytes),
        workspace=empty(source.workspace_bytes),
    )
    module = device.load(binary)
    kernel = LoadedKernel(device, module, source, weight_bytes=problem.w_elements * problem.element_bytes)
    kernel.prepare(tensors)
    launches = kernel.forward(tensors)
    kernel.run(launches[: len(source.stages)] if first_round else launches)
    device.synchronize()
    module.unload()
    for address in owned:
        device.free(address)


def main() -> None:
    """Read the job that was written a moment ago."""
    job: Job = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - a file of our own, in a folder of our own
    device = open_device(job.device)
    for source in job.sources:
        launch_once(device, source, job.binary, first_round=job.first_round)
    device.close()


if __name__ == "__main__":
    main()
