"""A kernel of a few microseconds is timed over several passes, each on arrays of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.device import Launch, Sample
from autotune.devices.host import HostDevice, HostModule, HostOptions
from autotune.devices.host_compile import compile_host
from autotune.evaluation.session import Session
from autotune.evaluation.worker import EvaluateRequest, FinalsRequest, FinalsTimings, LayerRequest, OpenRequest
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import load_templates
from autotune.measurement.choices import Choices, ChoicesRequest
from autotune.measurement.reference import check_program
from autotune.problem import Conv2dProblem
from autotune.trial import Measured

pytestmark = pytest.mark.cxx

PROBLEM = Conv2dProblem(2, 3, 9, 11, 4, 3, 3)
TARGET = Target("host")


class Watched(HostDevice):
    """The host, noting what each measurement launches."""

    def __init__(self, cxx: str, *, short_us: float) -> None:
        super().__init__(cxx, HostOptions(cores=1, short_us=short_us))
        self.launches: list[Launch] = []
        self.measured: list[list[Launch]] = []

    def load(self, binary: Binary) -> HostModule:
        """A module whose launches are noted."""
        module, launches = super().load(binary), self.launches
        launch_it = module.launch

        def launch(launch: Launch, *, stream: int = 0) -> None:
            launches.append(launch)
            launch_it(launch, stream=stream)

        module.launch = launch  # type: ignore[method-assign]
        return module

    def time(self, passes: Sequence[Callable[[], None]], *, cold: bool) -> Sample:
        """Note the launches between the two clock readings."""
        self.launches.clear()
        sample = super().time(passes, cold=cold)
        self.measured.append(list(self.launches))
        return sample


def opened(cxx: str, *, short_us: float) -> tuple[Watched, Session]:
    device = Watched(cxx, short_us=short_us)
    session = Session(time.perf_counter, lambda _name, _runtime: device)
    session.answer(OpenRequest("host"))
    session.answer(LayerRequest(PROBLEM, compile_host(check_program(PROBLEM), TARGET, cxx=cxx)))
    return device, session


def kernel(cxx: str, device: HostDevice, family: str, **pinned: str) -> tuple[KernelSource, Binary]:
    """A family's first config with these values, compiled."""
    bound = BoundTemplate(load_templates()[family], PROBLEM, device.info, Admission())
    config = SearchSpace(bound, {name: (value,) for name, value in pinned.items()}).default
    assert config is not None
    source = render(bound, config)
    return source, compile_host(source.program, TARGET, cxx=cxx)


def addresses(launches: Sequence[Launch]) -> set[int]:
    return {int(argument) for launch in launches for argument in launch.args if isinstance(argument, np.uint64)}


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_a_short_kernel_is_timed_over_many_passes(cxx: str, cache: str) -> None:
    device, session = opened(cxx, short_us=1e9)
    source, binary = kernel(cxx, device, "split_c", reduction="workspace")
    answer = session.answer(EvaluateRequest(source, binary, cache, None))
    assert isinstance(answer, Measured)
    assert answer.timing.passes == 32
    sampled = device.measured[-1]
    each = len(sampled) // 32
    passes = [sampled[at : at + each] for at in range(0, len(sampled), each)]
    assert len(passes) == 32
    if cache == "cold":
        arrays = [addresses(one) for one in passes]
        assert sum(map(len, arrays)) == len(set.union(*arrays)), "no pass finds another's arrays in the cache"
        assert len(arrays[0]) >= 4, "x, w, y and the workspace"
    else:
        assert addresses(sampled) == addresses(passes[0])
    device.close()


def test_a_long_kernel_is_timed_alone_and_its_verification_counts(cxx: str) -> None:
    device, session = opened(cxx, short_us=0.0)
    source, binary = kernel(cxx, device, "direct")
    answer = session.answer(EvaluateRequest(source, binary, "cold", None))
    assert isinstance(answer, Measured)
    assert answer.timing.passes == 1
    assert all(len(launches) == 1 for launches in device.measured)
    first, integers = 1, 1
    assert len(answer.timing.samples_us) == len(device.measured) - first - integers
    device.close()


def test_contenders_are_timed_alike_when_one_of_them_is_short(cxx: str) -> None:
    device, session = opened(cxx, short_us=1e9)
    kernels = (kernel(cxx, device, "direct"), kernel(cxx, device, "split_c", reduction="workspace"))
    answer = session.answer(FinalsRequest(kernels, (), "cold", 0.05, 0))
    assert isinstance(answer, FinalsTimings)
    assert [timing.passes for timing in answer.timings] == [32, 32]
    device.close()


PICKS = """
extern "C" __global__ void picks(const long long* table, int* choices, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) choices[at] = static_cast<int>(table[2 * at] - table[2 * at + 1]);
}
"""


def test_a_dispatcher_is_asked_for_every_row_of_a_table(cxx: str) -> None:
    device, session = opened(cxx, short_us=0.0)
    binary = compile_host(Program(PICKS, ("picks",)), TARGET, cxx=cxx)
    table = tuple((3 * row, 2 * row + 1) for row in range(100))
    assert session.answer(ChoicesRequest(binary, table)) == Choices(tuple(row - 1 for row in range(100)))
    device.close()
