"""`python -m autotune.workers.profiled JOB`: run each kernel once, for a profiler or sanitizer to observe.

This is a separate program that does nothing else on the device, because both tools stop at every launch. Every array
has exactly the bytes that the kernel was promised, with no accessible memory around it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.compilation.compile import Binary
from autotune.devices.backends import open_device
from autotune.devices.device import Device
from autotune.family.source import KernelSource
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.numpy_reference import given_data
from autotune.measurement.storage import encoded
from autotune.operation.declarations import DRAWN
from autotune.operation.storage_types import FLOATS
from autotune.problem import Problem

_DRAWN = 1 << 24  # random numbers drawn for an array; a longer array repeats the numbers


Kernel = tuple[KernelSource, Binary]


@dataclass(frozen=True, slots=True)
class Job:
    """The kernels to launch, written as a pickle."""

    device: str
    kernels: tuple[Kernel, ...]
    """consecutive kernels for one problem share all arrays of the problem"""
    first_round: bool
    """whether to run only the first round of each kernel's stages"""


def launch_once(device: Device, kernels: Sequence[Kernel], *, first_round: bool) -> None:
    """Launch every stage of each kernel once or, with `first_round`, only the stages of the first round."""
    for problem, same in groupby(kernels, key=lambda kernel: kernel[0].problem):
        with ExitStack() as owned:
            arrays = _arrays(device, problem, owned)
            for source, binary in same:
                _launch(device, source, binary, arrays, first_round=first_round)


def _arrays(device: Device, problem: Problem, owned: ExitStack) -> Tensors:
    """Allocate a problem's arrays and fill the inputs with random data."""
    random = np.random.default_rng(0)
    addresses = {array.name: _allocated(device, array.size_bytes, owned) for array in problem.arrays}
    given = given_data(problem, 0)
    for array in problem.filled:
        if array.fill == "data":
            drawn: npt.NDArray[np.floating | np.integer] = given[array.name]
        elif array.fill in DRAWN and array.dtype in FLOATS:
            drawn = random.standard_normal(min(array.elements, _DRAWN), dtype=np.float32)
        elif array.fill in ("range", "permutation"):
            drawn = np.arange(array.elements, dtype=np.int64) % array.shape[-1]
        else:
            drawn = random.integers(*array.whole_bounds, min(array.elements, _DRAWN), endpoint=True)
        device.write(addresses[array.name], encoded(np.resize(drawn, array.elements), array.dtype))
    return Tensors(addresses)


def _allocated(device: Device, size_bytes: int, owned: ExitStack) -> int:
    address = device.allocate(size_bytes)
    owned.callback(device.free, address)
    return address


def _launch(device: Device, source: KernelSource, binary: Binary, arrays: Tensors, *, first_round: bool) -> None:
    with ExitStack() as owned:
        tensors = replace(
            arrays,
            packed_w=_allocated(device, source.packed_w_bytes, owned),
            workspace=_allocated(device, source.workspace_bytes, owned),
        )
        module = device.load(binary)
        kernel = LoadedKernel(device, module, source)
        kernel.prepare(tensors)
        launches = kernel.forward(tensors)
        kernel.run(launches[: len(source.stages)] if first_round else launches)
        device.synchronize()
        module.unload()


def main() -> None:
    """Read the job from the file given on the command line, and launch the kernels."""
    job: Job = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - a file of our own, in a folder of our own
    device = open_device(job.device)
    launch_once(device, job.kernels, first_round=job.first_round)
    device.close()


if __name__ == "__main__":
    main()
