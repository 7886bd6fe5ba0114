"""Timing from CUDA graphs: no launch gap is timed, nothing changes for long kernels, and baselines run as users do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

import pytest

from autotune.compilation.compile import Binary, Target
from autotune.devices.backends import compile_program, open_device
from autotune.devices.device import Baseline, Device, Launch, Passes
from autotune.devices.torch_baseline import baselines_of
from autotune.errors import Rejected
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.reference import check_program
from autotune.problem import Conv2dProblem
from autotune.trial import LONG_US, Measured
from autotune.workers.device_server import WorkerServer
from autotune.workers.worker import EvaluateRequest, FinalsRequest, FinalsTimings, LayerRequest, OpenRequest

pytestmark = pytest.mark.gpu

LONG = Conv2dProblem(600, 4, 66, 66, 8, 5, 5)
TINY = Conv2dProblem(4, 4, 20, 20, 8, 3, 3)
RESNET = Conv2dProblem(64, 1024, 14, 14, 256, 1, 1, dtype="f16", layout="nhwc", epilogue="bias_relu")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = open_device("cuda:0")
    yield opened
    opened.close()


def compiled(problem: Conv2dProblem, family: str, device: Device) -> tuple[KernelSource, Binary]:
    """A family's default for a problem."""
    admission = Admission(("fp32", "fp16"))
    bound = BoundTemplate(load_template(template_files()[family]), problem, device.info, admission)
    config = SearchSpace(bound, most_rows=0, sampled_rows=200).default
    assert config is not None
    source = render(bound, config)
    return source, compile_program(source.program, Target("cuda", device.info.arch))


def passes_of(problem: Conv2dProblem, device: Device, count: int) -> tuple[list[partial[None]], LoadedKernel]:
    """Passes of the plain kernel, all on the same arrays."""
    source, binary = compiled(problem, "direct", device)
    kernel = LoadedKernel(device, device.load(binary), source)
    tensors = Tensors({array.name: device.allocate(array.size_bytes) for array in problem.arrays})
    kernel.prepare(tensors)
    return [partial(kernel.run, kernel.forward(tensors))] * count, kernel


def median_us(device: Device, passes: Passes) -> float:
    device.time(passes, cold=True)
    return statistics.median(device.time(passes, cold=True).us for _ in range(15))


def test_a_long_kernel_takes_the_same_from_a_graph(device: Device) -> None:
    (run,), _ = passes_of(LONG, device, 1)
    launched, replayed = median_us(device, Passes(run)), median_us(device, device.record([run]))
    print(f"launched {launched:.2f} us, from a graph {replayed:.2f} us")
    assert launched > LONG_US
    assert replayed == pytest.approx(launched, rel=0.015)


def test_a_short_kernel_shows_no_gaps_in_a_graph(device: Device) -> None:
    each, _ = passes_of(TINY, device, 32)
    alone, replayed = median_us(device, Passes(each[0])), median_us(device, device.record(each))
    print(f"launched alone {alone:.2f} us, 32 in a graph {replayed:.2f} us a pass")
    assert replayed < 0.8 * alone


def test_a_launch_that_is_refused_while_recording_is_a_rejection(device: Device) -> None:
    (run,), kernel = passes_of(TINY, device, 1)

    def refused() -> None:
        kernel.module.launch(Launch(kernel.source.stages[0].entry, (1, 1, 1), (4096, 1, 1), 0, ()))

    with pytest.raises((Rejected, TypeError)):
        device.record([refused])
    assert median_us(device, device.record([run])) > 0, "the device is unharmed"


@pytest.fixture(scope="module")
def server(device: Device) -> WorkerServer:
    opened = WorkerServer(time.perf_counter, lambda name, runtime: device)
    opened.answer(OpenRequest("cuda:0"))
    return opened


def held(server: WorkerServer, device: Device, baselines: tuple[Baseline, ...]) -> FinalsTimings:
    check = compile_program(check_program(RESNET), Target("cuda", 90))
    server.answer(LayerRequest(RESNET, check))
    kernel = compiled(RESNET, "mma_gemm", device)
    searched = server.answer(EvaluateRequest(*kernel, "cold", None))
    assert isinstance(searched, Measured)
    assert searched.timing.launch == "graph"
    found = server.answer(FinalsRequest((kernel, kernel), baselines, "cold", 1.0, 0))
    assert isinstance(found, FinalsTimings)
    first, second = found.kernels
    assert first.launch == second.launch == "graph"
    assert first.median_us == pytest.approx(second.median_us, rel=0.03)
    assert first.median_us == pytest.approx(searched.timing.median_us, rel=0.06), "search and finals time alike"
    return found


def test_cudnn_is_timed_without_gaps_and_fused(server: WorkerServer, device: Device) -> None:
    baselines = baselines_of("cudnn", RESNET)
    found = held(server, device, baselines)
    times = {
        baseline.name: timing if isinstance(timing, str) else timing.median_us
        for baseline, timing in zip(baselines, found.baselines, strict=True)
    }
    print(times, [timing.median_us for timing in found.kernels])
    fused, separate = times["cudnn nhwc fused"], times["cudnn nhwc"]
    assert isinstance(fused, float)
    assert isinstance(separate, float)
    assert fused < 25, "14 us on an H200; with launch gaps it was 147"
    assert fused < separate


@pytest.mark.filterwarnings("default")  # PyTorch's own, of its own code
def test_inductor_is_a_contender(server: WorkerServer, device: Device) -> None:
    found = held(server, device, baselines_of("inductor", RESNET))
    (timing,) = found.baselines
    print(timing if isinstance(timing, str) else timing.median_us)
    assert not isinstance(timing, str), timing
    assert timing.launch == "graph"
    assert timing.median_us < 60
