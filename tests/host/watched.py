"""The host device, with a record of its launches and timings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import Baseline, Launch, Passes, Sample, Variation
from autotune.devices.host import HostDevice, HostModule, HostOptions
from autotune.measurement.reference import check_program
from autotune.problem import Problem
from autotune.workers.device_server import WorkerServer
from autotune.workers.worker import LayerRequest, OpenRequest
from tests.compiled import compiled


class Watched(HostDevice):
    """The host device, with a record of each measurement's launches and of the memory in use."""

    def __init__(self, cxx: str, *, short_us: float) -> None:
        super().__init__(cxx, HostOptions(cores=1, short_us=short_us))
        self.launches: list[Launch] = []
        self.measured: list[list[Launch]] = []
        self.paced_us: float | None = None
        """the reported time of every pass"""
        self.beside: tuple[int, bool] | None = None
        """passes of a baseline, and whether they are cold"""
        self.held: dict[int, int] = {}
        """addresses of memory that was not freed, and its bytes"""
        self.most: Counter[int] = Counter()
        """bytes to the largest number of blocks of this size that were in use at once"""

    @contextmanager
    def varied(self, how: Variation) -> Iterator[bool]:
        """Not supported, so that runs of the verification may count as samples."""
        yield False

    def allocate(self, size_bytes: int) -> int:
        """Note the allocation."""
        address = super().allocate(size_bytes)
        self.held[address] = size_bytes
        self.most |= Counter({size_bytes: list(self.held.values()).count(size_bytes)})
        return address

    def free(self, address: int) -> None:
        """Note the release."""
        super().free(address)
        self.held.pop(address, None)

    def load(self, binary: Binary) -> HostModule:
        """A module with a record of its launches."""
        module, launches = super().load(binary), self.launches
        launch_it = module.launch

        def launch(launch: Launch, *, stream: int = 0) -> None:
            launches.append(launch)
            launch_it(launch, stream=stream)

        module.launch = launch  # type: ignore[method-assign]
        return module

    def time(self, passes: Passes, *, cold: bool) -> Sample:
        """Note the launches between the two clock readings."""
        self.launches.clear()
        sample = super().time(passes, cold=cold)
        self.measured.append(list(self.launches))
        return replace(sample, us=self.paced_us or sample.us)

    def baselines(
        self, baselines: Sequence[Baseline], problem: Problem, *, passes: int, cold: bool
    ) -> tuple[Passes | str, ...]:
        """Note how often they are to run."""
        self.beside = (passes, cold)
        return tuple("no library here" for _ in baselines)


def opened(problem: Problem, cxx: str, *, short_us: float) -> tuple[Watched, WorkerServer]:
    """A device that records its launches, and a worker on it that has made the problem's data."""
    device = Watched(cxx, short_us=short_us)
    server = WorkerServer(time.perf_counter, lambda _name, _runtime: device)
    server.answer(OpenRequest("host"))
    server.answer(LayerRequest(problem, compiled(check_program(problem), cxx=cxx)))
    return device, server


def addresses(launches: Sequence[Launch]) -> set[int]:
    """The arrays that these launches get."""
    return {
        int(argument) for launch in launches for argument in launch.args if isinstance(argument, np.uint64) and argument
    }
