"""On a GPU: copies overlap with kernels, a network on tuned kernels predicts as in float64, and ncu reads counters."""

from __future__ import annotations

import pytest

from autotune.analysis.profile import Profiler
from autotune.compilation.compile import Binary
from autotune.compilation.toolchain import find_ncu
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.measurement.end_to_end_timer import EndToEndPlan, EndToEndRequest, EndToEndTiming, cut
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.injected_faults import GOOD

pytestmark = pytest.mark.gpu

CONV1 = Conv2dProblem(2001, 1, 70, 70, 12, 5, 5)
CONV2 = Conv2dProblem(500, 12, 33, 33, 24, 5, 5)


def compiled(gpu: DeviceEvaluator, problem: Conv2dProblem) -> tuple[KernelSource, Binary]:
    """The tests' family on a problem."""
    bound = BoundTemplate(load_template(GOOD), problem, gpu.info)
    source = render(bound, Config.of("shared_tile", {"tile": 16, "images": 2}))
    return source, gpu.compile(source).result()


def timed(gpu: DeviceEvaluator, plan: EndToEndPlan) -> EndToEndTiming:
    sizes = {segment.n for segment in cut(CONV1.n, plan.segments)}
    return gpu.end_to_end(
        EndToEndRequest(CONV1, plan, tuple(compiled(gpu, CONV1.with_runtime(n)) for n in sorted(sizes)))
    )


def test_copies_overlap_with_kernels(gpu: DeviceEvaluator) -> None:
    gpu.begin_layer(CONV1)
    whole = timed(gpu, EndToEndPlan(1, 1, pinned=True))
    many = timed(gpu, EndToEndPlan(4, 8, pinned=True))
    pageable = timed(gpu, EndToEndPlan(1, 1, pinned=False))
    for one, segments in ((whole, 1), (many, 8), (pageable, 1)):
        assert one.measured.error.over_bound < 1
        assert one.parts.distinct_segments == segments
    assert whole.parts.hidden_fraction is not None
    assert whole.parts.hidden_fraction == pytest.approx(0.0, abs=0.05), "nothing to overlap with"
    assert many.parts.hidden_fraction is not None
    assert many.parts.hidden_fraction > 0.05
    assert many.measured.timing.median_us < whole.measured.timing.median_us
    assert whole.parts.copy_out_us < pageable.parts.copy_out_us, "pinned memory is copied faster"
    assert whole.parts.allocate_us > pageable.parts.allocate_us / 10


def test_ncu_reads_counters(gpu: DeviceEvaluator) -> None:
    kernel = compiled(gpu, CONV2)
    try:
        profiled = Profiler(find_ncu()).profile("cuda:0", [kernel, kernel])
    except ToolchainError as error:
        pytest.skip(str(error))
    (profile,), (again,) = profiled.launches
    assert profiled.why_not == ""
    assert profile.entry == again.entry == "conv2d_shared_tile"
    assert profile.time_us is not None
    assert profile.time_us > 1
    assert again.time_us == pytest.approx(profile.time_us, rel=0.2)
    assert profile.dram_written_bytes is not None
    fractions = ("achieved_occupancy", "load_efficiency_fraction", "fma_utilisation_fraction", "l1_hit_fraction")
    more = ("l2_hit_fraction", "sm_throughput_fraction", "memory_throughput_fraction", "issue_fraction")
    for name in (*fractions, *more):
        value = getattr(profile, name)
        assert value is not None, f"{name}: this ncu has no such counter"
        assert 0 <= value <= 1.01, name
    assert profile.active_threads is not None
    assert 1 <= profile.active_threads <= 32
    assert profile.shared_load_wavefronts
    assert profile.stalls
