"""Every fault planted in a family is caught on the GPU, and the known good kernel still runs after each."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.compilation.compile import Binary
from autotune.compilation.toolchain import find_nvcc
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem
from autotune.trial import Measured
from autotune.workers.device_worker import Deadlines
from tests.injected_faults import FAULTS, GOOD, PLANTED_COMPILER
from tests.processes import MARK, kill_device_worker, removing_leftovers

pytestmark = pytest.mark.gpu

PROBLEM = Conv2dProblem(33, 2, 40, 41, 5, 3, 3, pad_h=1, pad_w=1, epilogue="bias")
"""Images, rows and columns that no block divides; 459 blocks, so that a race shows somewhere."""
DEADLINE_S = 12.0  # limit of one evaluation; a correct one takes well under a second
COMPILE_DEADLINE_S = 25.0  # a correct program takes about a second
THIS_RUN = uuid.uuid4().hex
CUDA_FAULTS = {name: fault for name, fault in FAULTS.items() if fault.cuda}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The correct kernel and the faulty ones, all being compiled."""

    gpu: DeviceEvaluator
    sources: Mapping[str, KernelSource]
    binaries: Mapping[str, Future[Binary]]

    def measure(self, name: str) -> Measured:
        """Compile, verify and time one of them."""
        binary = self.binaries[name].result()
        return self.gpu.evaluate(self.sources[name], binary, cache="cold", best_us=None)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceEvaluator]:
    """The first GPU, with a compiler that rejects, delays or crashes on some programs."""
    nvcc = tmp_path_factory.mktemp("toolkit") / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(PLANTED_COMPILER)
    nvcc.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_COMPILER", str(find_nvcc()))
        patch.setenv("CUDA_HOME", str(nvcc.parent.parent))
        patch.setenv(MARK, THIS_RUN)
        deadlines = Deadlines(evaluate_s=DEADLINE_S, compile_s=COMPILE_DEADLINE_S)
        evaluator = DeviceEvaluator(["cuda:0"], len(os.sched_getaffinity(0)), deadlines=deadlines)
        yield evaluator
        evaluator.close()
    assert removing_leftovers(THIS_RUN, 10.0)


@pytest.fixture(scope="module")
def kernels(gpu: DeviceEvaluator, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    folder = tmp_path_factory.mktemp("faults")
    sources = {"good": source_of(GOOD, gpu)}
    for name, fault in CUDA_FAULTS.items():
        path = folder / f"{name}.cu.j2"
        path.write_text(fault.text)
        sources[name] = source_of(path, gpu)
    gpu.begin_layer(PROBLEM)
    return Kernels(gpu, sources, {name: gpu.compile(source) for name, source in sources.items()})


def source_of(path: Path, gpu: DeviceEvaluator) -> KernelSource:
    """A family's only config, rendered."""
    space = SearchSpace(BoundTemplate(load_template(path), PROBLEM, gpu.info))
    return render(space.bound, space.config(0))


def test_good_kernel_is_measured(kernels: Kernels) -> None:
    measured = kernels.measure("good")
    assert 0 < measured.error.over_bound < 1
    assert 0 < measured.timing.median_us < 10_000
    assert measured.timing.q1_us <= measured.timing.median_us <= measured.timing.q3_us


@pytest.mark.parametrize("name", CUDA_FAULTS)
def test_fault_is_caught_and_the_next_kernel_runs(kernels: Kernels, name: str) -> None:
    if name == "worker_is_killed":
        threading.Thread(target=kill_device_worker, args=(THIS_RUN, DEADLINE_S), daemon=True).start()
    with pytest.raises(Rejected) as error:
        kernels.measure(name)
    assert f"{error.value.outcome}/{error.value.reason}" in CUDA_FAULTS[name].cuda, error.value.message
    assert error.value.message
    assert kernels.measure("good").error.over_bound < 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("store_far_away", "illegal memory access"),
        ("misaligned", "misaligned address"),
        ("assert", "assert"),
        ("endless_loop", f"no answer within {DEADLINE_S:.0f} s"),
        ("short_row", "q = 40"),
        ("forgotten_map", "k = 4"),
        ("too_few_blocks_for_images", "n = 32"),
        ("syntax_error", "kernel.cu("),
        ("workspace_of_terabytes", "bytes"),
    ],
)
def test_message_says_what_happened(kernels: Kernels, name: str, words: str) -> None:
    with pytest.raises(Rejected) as error:
        kernels.measure(name)
    assert words in error.value.message
