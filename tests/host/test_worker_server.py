"""How a worker answers requests: how it times a kernel, against which rivals, and what it leaves out."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.device import Baseline
from autotune.devices.host import HostDevice
from autotune.errors import Disproved, Rejected
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, load_templates
from autotune.measurement.dispatcher_check import Choices, ChoicesRequest
from autotune.measurement.reference import check_program
from autotune.problem import Conv2dProblem, Problem, make_problem
from autotune.trial import Measured
from autotune.workers.worker import (
    EvaluateRequest,
    FinalsRequest,
    FinalsTimings,
    LayerRequest,
    Skipped,
)
from tests.compiled import compiled
from tests.host.watched import addresses, opened
from tests.injected_faults import FAULTS, GOOD
from tests.long_run import long_run
from tests.operations import SAXPY, written

pytestmark = pytest.mark.cxx

PROBLEM = Conv2dProblem(2, 3, 9, 11, 4, 3, 3)
TARGET = Target("host")


def kernel(
    cxx: str, device: HostDevice, family: str | KernelTemplate, problem: Problem = PROBLEM, **pinned: str
) -> tuple[KernelSource, Binary]:
    """A family's first config with these values, compiled."""
    template = load_templates()[family] if isinstance(family, str) else family
    bound = BoundTemplate(template, problem, device.info, Admission())
    config = SearchSpace(bound, {name: (value,) for name, value in pinned.items()}).default
    assert config is not None
    source = render(bound, config)
    return source, compiled(source.program, cxx=cxx)


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_an_array_that_a_pass_changes_is_restored_before_each_pass(cxx: str, cache: str, tmp_path: Path) -> None:
    family = load_template(written(tmp_path / "saxpy", SAXPY))
    problem = make_problem(family.operation, {"n": 5000})
    device, server = opened(problem, cxx, short_us=1e9)
    answer = server.answer(EvaluateRequest(*kernel(cxx, device, family, problem), cache, None))
    assert isinstance(answer, Measured), answer
    device.close()


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_a_short_kernel_is_timed_over_many_passes(cxx: str, cache: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=1e9)
    device.paced_us = 10.0
    source, binary = kernel(cxx, device, "im2col_gemm")
    answer = server.answer(EvaluateRequest(source, binary, cache, None))
    assert isinstance(answer, Measured)
    assert answer.timing.passes == 32
    sampled = device.measured[-1]
    each = len(sampled) // 32
    passes = [sampled[at : at + each] for at in range(0, len(sampled), each)]
    assert len(passes) == 32
    if cache == "cold":
        arrays = [addresses(one) - {0} for one in passes]  # without the bias, because there is none
        assert sum(map(len, arrays)) == len(set.union(*arrays)), "no pass finds another's arrays in the cache"
        assert len(arrays[0]) >= 4, "x, w, y and the workspace"
    else:
        assert addresses(sampled) == addresses(passes[0])
    device.close()


@pytest.mark.parametrize("short_us", [0.0, 1e9])
def test_what_is_timed_has_the_filters_of_the_data(cxx: str, short_us: float) -> None:
    device, server = opened(PROBLEM, cxx, short_us=short_us)
    device.paced_us = 10.0
    source, binary = kernel(cxx, device, "direct", filters="constant")
    answer = server.answer(EvaluateRequest(source, binary, "cold", None))
    assert isinstance(answer, Measured), "the verification leaves the filters of its integers in constant memory"
    device.close()


def test_a_long_kernel_is_timed_alone_and_its_verification_counts(cxx: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    source, binary = kernel(cxx, device, "direct")
    answer = server.answer(EvaluateRequest(source, binary, "cold", None))
    assert isinstance(answer, Measured)
    assert answer.timing.passes == 1
    assert all(len(launches) == 1 for launches in device.measured)
    first, integers, larger = 1, 1, 1
    after = 1  # compares this once more
    assert len(answer.timing.samples_us) == len(device.measured) - first - integers - larger - after
    device.close()


def test_a_kernel_surely_behind_is_run_no_more_often_than_its_samples_need(cxx: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    source, binary = kernel(cxx, device, "direct")

    def runs_and_samples(us: float, cache: str = "cold") -> tuple[int, int]:
        device.paced_us = us
        device.measured.clear()
        answer = server.answer(EvaluateRequest(source, binary, cache, 100.0))
        assert isinstance(answer, Measured)
        return len(device.measured), len(answer.timing.samples_us)

    assert runs_and_samples(104.0) == (9, 5), "the first run, those on other numbers and the last one are no samples"
    assert runs_and_samples(106.0) == (6, 5), "all but the run on larger numbers are for one that cannot win"
    assert runs_and_samples(106.0, "hot") == (11, 5), "no run of the verification finds warm caches"
    device.close()


def test_a_kernel_races_against_the_fastest_that_the_worker_measured(cxx: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    source, binary = kernel(cxx, device, "direct")

    def too_slow(us: float, best_us: float | None, cache: str = "cold") -> bool:
        device.paced_us = us
        answer = server.answer(EvaluateRequest(source, binary, cache, best_us))
        assert isinstance(answer, Measured)
        return answer.too_slow

    assert not too_slow(100.0, math.inf), "the first"
    assert too_slow(1000.0, math.inf), "not sent with the first one's time, which was not known by then"
    assert not too_slow(1000.0, None), "out of the race"
    assert not too_slow(1000.0, math.inf, "hot"), "another race"
    server.answer(LayerRequest(PROBLEM, compiled(check_program(PROBLEM), cxx=cxx)))
    assert not too_slow(1000.0, math.inf), "another layer"
    device.close()


def test_a_kernel_behind_one_that_failed_is_not_run(cxx: str, tmp_path: Path) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    wrong = tmp_path / "mirrored_taps.cu.j2"
    wrong.write_text(FAULTS["mirrored_taps"].text)
    bad, good = (EvaluateRequest(*kernel(cxx, device, it), "hot", None) for it in (load_template(wrong), "direct"))
    assert isinstance(server.answer(replace(good, behind=True)), Measured)
    with pytest.raises(Rejected):
        server.answer(replace(bad, behind=True))
    device.measured.clear()
    assert [server.answer(replace(good, behind=True)) for _ in range(2)] == [Skipped(), Skipped()]
    assert not device.measured
    assert isinstance(server.answer(good), Measured), "once it was sent alone"
    assert isinstance(server.answer(replace(good, behind=True)), Measured)
    device.close()


def test_contenders_are_timed_alike_when_one_of_them_is_short(cxx: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=1e9)
    device.paced_us = 10.0
    kernels = (kernel(cxx, device, "direct"), kernel(cxx, device, "im2col_gemm"))
    answer = server.answer(FinalsRequest(kernels, (), "cold", 0.05, 0))
    assert isinstance(answer, FinalsTimings)
    assert [timing.passes for timing in answer.kernels] == [32, 32]
    device.close()


def tiring(cxx: str, device: HostDevice, folder: Path, launches: int) -> tuple[KernelSource, Binary]:
    """A family's kernel that is right for this many launches, and then writes nothing."""
    path = folder / "tiring.cu.j2"
    counter = (
        'extern "C" __global__',
        '__device__ int *launches = new int(0);  // where the host does not look\n\nextern "C" __global__',
    )
    stops = (
        "    for (int i = 0; i < IMAGES",
        f"    if (*launches >= {launches}) return;\n    for (int i = 0; i < IMAGES",
    )
    counts = ("    }\n}\n", "    }\n    if (blockIdx.x + blockIdx.y + blockIdx.z + thread == 0) ++*launches;\n}\n")
    text = GOOD.read_text()
    for old, new in (counter, stops, counts):
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)
    return kernel(cxx, device, load_template(path))


@pytest.mark.parametrize(("cache", "short_us"), [("cold", 0.0), ("hot", 1e9), *long_run(("hot", 0.0), ("cold", 1e9))])
def test_a_kernel_that_goes_wrong_while_it_is_timed_is_caught(
    cxx: str, tmp_path: Path, cache: str, short_us: float
) -> None:
    device, server = opened(PROBLEM, cxx, short_us=short_us)
    source, binary = tiring(cxx, device, tmp_path, 7)
    with pytest.raises(Rejected, match="right when verified, and wrong after it was timed") as error:
        server.answer(EvaluateRequest(source, binary, cache, None))
    assert error.value.reason == "wrong_after_timing"
    device.close()


def reusing(cxx: str, device: HostDevice, folder: Path, problem: Conv2dProblem) -> tuple[KernelSource, Binary]:
    """A family's kernel whose blocks compute only their first output if that output is already right."""
    path = folder / "reusing.cu.j2"
    looks = """
    float first = 0.0f;
    const int first_p = blockIdx.y * TILE, first_q = blockIdx.x * TILE, first_image = blockIdx.z * IMAGES;
    for (int i = 0; i < C * R * S; ++i) {
        const int c = i / (R * S), row = first_row + i / S % R * DILATION_H, column = first_column + i % S * DILATION_W;
        if (row < 0 || row >= H || column < 0 || column >= W) continue;
        first += w[i] * x[((first_image * C + c) * H + row) * W + column];
    }
    if (fabsf(y[(first_image * K * P + first_p) * Q + first_q] - first) < 1e-3f) return;
    for (int i = 0; i < IMAGES"""
    text = GOOD.read_text()
    assert text.count("\n    for (int i = 0; i < IMAGES") == 1
    path.write_text(text.replace("\n    for (int i = 0; i < IMAGES", looks))
    return kernel(cxx, device, load_template(path), problem)


@pytest.mark.parametrize("short_us", [0.0, 1e9])
def test_a_kernel_that_keeps_outputs_of_earlier_passes_is_caught(cxx: str, tmp_path: Path, short_us: float) -> None:
    problem = Conv2dProblem(3, 2, 66, 66, 2, 3, 3)
    device, server = opened(problem, cxx, short_us=short_us)
    source, binary = reusing(cxx, device, tmp_path, problem)
    with pytest.raises(
        Rejected, match="outputs depend on memory that the kernel reads before anything is written"
    ) as error:
        server.answer(EvaluateRequest(source, binary, "cold", None))
    assert error.value.outcome == "wrong_result"
    device.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "* tile[row * TILE_W + column]",
            "* __uint_as_float(__float_as_uint(tile[row * TILE_W + column]) & 0xffffe000u)",
        ),
        ("for (int c = 0; c < C; ++c)", "for (int c = 0; c < C - 1; ++c)"),
        ("for (int s = 0; s < S; ++s)", "for (int s = 0; s < S - (r == 2); ++s)"),
    ],
    ids=["TF32 for fp32", "without the last channel", "without the last tap"],
)
def test_a_kernel_that_does_less_than_its_class_names_is_caught(cxx: str, tmp_path: Path, old: str, new: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    text = GOOD.read_text()
    assert text.count(old) == 1
    path = tmp_path / "less.cu.j2"
    path.write_text(text.replace(old, new))
    source, binary = kernel(cxx, device, load_template(path))
    with pytest.raises(Rejected, match="outputs are wrong on normal data") as error:
        server.answer(EvaluateRequest(source, binary, "cold", None))
    assert error.value.reason == "wrong"
    device.close()


def test_a_finalist_that_goes_wrong_is_named(cxx: str, tmp_path: Path) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    kernels = (kernel(cxx, device, "direct"), tiring(cxx, device, tmp_path, 7), kernel(cxx, device, "direct"))
    with pytest.raises(Disproved, match="wrong after it was timed") as error:
        server.answer(FinalsRequest(kernels, (), "cold", 0.05, 0))
    assert list(error.value.messages) == [1]
    assert pickle.loads(pickle.dumps(error.value)).messages == error.value.messages
    device.close()


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_baselines_find_the_caches_as_the_kernels_do(cxx: str, cache: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=1e9)
    device.paced_us = 10.0
    answer = server.answer(
        FinalsRequest((kernel(cxx, device, "direct"),), (Baseline("cudnn", "nchw"),), cache, 0.05, 0)
    )
    assert isinstance(answer, FinalsTimings)
    assert answer.baselines == ("no library here",)
    assert device.beside == (answer.kernels[0].passes, cache == "cold")
    device.close()


PICKS = """
extern "C" __global__ void picks(const long long* table, int* choices, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) choices[at] = static_cast<int>(table[2 * at] - table[2 * at + 1]);
}
"""


def test_a_dispatcher_is_asked_for_every_row_of_a_table(cxx: str) -> None:
    device, server = opened(PROBLEM, cxx, short_us=0.0)
    binary = compiled(Program(PICKS, ("picks",)), cxx=cxx)
    table = tuple((3 * row, 2 * row + 1) for row in range(100))
    assert server.answer(ChoicesRequest(binary, table)) == Choices(tuple(row - 1 for row in range(100)))
    device.close()
