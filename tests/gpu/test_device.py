"""The CUDA device: calibration is plausible, times cover the kernel alone, and nothing remains afterwards."""

from __future__ import annotations

import uuid

import pytest

from autotune.devices.device import best_rates
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.measurement.calibrate import Calibration
from autotune.problem import Conv2dProblem
from tests.processes import MARK, marked, removing_leftovers

pytestmark = pytest.mark.gpu

SMALL = Conv2dProblem(16, 4, 33, 33, 8, 5, 5)
LARGE = Conv2dProblem(500, 4, 66, 66, 8, 5, 5)


def test_device_describes_itself(gpu: DeviceEvaluator) -> None:
    info = gpu.info
    assert info.kind == "cuda"
    assert info.arch >= 75
    assert info.sm_count > 10
    assert info.memory_bytes > 1 << 32
    assert info.smem_per_block_bytes >= 65536
    assert info.l2_bytes > 1 << 20
    assert gpu.environment.driver[0].isdigit() or gpu.environment.driver.startswith("CUDA")
    assert gpu.environment.toolkit.startswith("nvcc ")


@pytest.fixture(scope="module")
def calibration(gpu: DeviceEvaluator) -> Calibration:
    """The device's rates, measured once."""
    return gpu.calibrate()


def test_calibrated_rates_are_in_proportion(gpu: DeviceEvaluator, calibration: Calibration) -> None:
    rates = best_rates(calibration.rates)
    assert 1e11 < rates["copy"] < 2e13
    assert 1e12 < rates["fp32"] < 1e15
    if gpu.info.arch >= 80:
        assert rates["fp32"] < rates["tf32"] < rates["fp16"]


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ("mma.sync m16n8k8", "wgmma m64n256k8"),
        ("mma.sync m16n8k16", "wgmma m64n256k16 f16"),
        ("mma.sync m16n8k16", "wgmma m64n256k16 bf16"),
    ],
)
def test_products_of_a_warpgroup_are_faster_than_a_warps(
    gpu: DeviceEvaluator, calibration: Calibration, slower: str, faster: str
) -> None:
    if gpu.info.arch != 90:
        pytest.skip("wgmma is of sm_90 alone")
    found = {rate.method: rate.per_s for rate in calibration.rates}
    assert found[faster] > 1.1 * found[slower], found
    assert found[f"{faster}, sustained"] < 1.03 * found[faster], found


@pytest.mark.parametrize(
    ("dtype", "methods"),
    [
        ("tf32", ("wgmma m64n256k8", "mma.sync m16n8k8")),
        ("f16", ("wgmma m64n256k16 f16", "mma.sync m16n8k16")),
        ("bf16", ("wgmma m64n256k16 bf16", "mma.sync m16n8k16")),
    ],
)
def test_the_librarys_products_confirm_the_rates(
    calibration: Calibration, dtype: str, methods: tuple[str, ...]
) -> None:
    """Both under the same power limit: a large product heats the device as the sustained measurement does."""
    pytest.importorskip("torch")
    assert calibration.left_out == ""
    found = {rate.method: rate.per_s for rate in calibration.rates}
    own = next(found[f"{method}, sustained"] for method in methods if f"{method}, sustained" in found)
    assert 0.8 < found[f"cuBLAS 8192^3 {dtype}"] / own < 1.1, found


def test_times_repeat(gpu: DeviceEvaluator) -> None:
    gpu.begin_layer(SMALL)
    space = SearchSpace(
        BoundTemplate(load_template(template_files()["direct"]), SMALL, gpu.info), most_rows=0, sampled_rows=1
    )
    assert space.default is not None
    source = render(space.bound, space.default)
    binary = gpu.compile(source).result()
    cold = [gpu.evaluate(source, binary, cache="cold", best_us=None).timing for _ in range(3)]
    hot = gpu.evaluate(source, binary, cache="hot", best_us=None).timing
    medians = [timing.median_us for timing in cold]
    assert max(medians) < 1.3 * min(medians)
    assert hot.median_us < 1.3 * min(medians)
    assert (hot.cache, cold[0].cache) == ("hot", "cold")
    assert len(cold[0].samples_us) >= 5


def test_samples_carry_clocks_and_short_kernels_take_several_passes(gpu: DeviceEvaluator) -> None:
    medians = {}
    for problem in (SMALL, LARGE):
        gpu.begin_layer(problem)
        bound = BoundTemplate(load_template(template_files()["direct"]), problem, gpu.info)
        default = SearchSpace(bound, most_rows=0, sampled_rows=1).default
        assert default is not None
        source = render(bound, default)
        binary = gpu.compile(source).result()
        timing = gpu.evaluate(source, binary, cache="cold", best_us=None).timing
        assert len(timing.sm_clocks_mhz) == len(timing.samples_us), timing
        assert all(200 < clock_mhz < 4000 for clock_mhz in timing.sm_clocks_mhz)
        assert timing.power_w is None or 10 < timing.power_w < 2000
        assert timing.temperature_c is None or 10 < timing.temperature_c < 110
        assert (timing.passes > 1) == (problem is SMALL)
        medians[problem] = timing.median_us
    assert 0.5 < medians[SMALL] < 20 < medians[LARGE]


def test_slow_kernel_is_stopped_early_and_keeps_its_time(gpu: DeviceEvaluator) -> None:
    gpu.begin_layer(SMALL)
    space = SearchSpace(
        BoundTemplate(load_template(template_files()["direct"]), SMALL, gpu.info), most_rows=0, sampled_rows=1
    )
    assert space.default is not None
    source = render(space.bound, space.default)
    measured = gpu.evaluate(source, gpu.compile(source).result(), cache="cold", best_us=0.01)
    assert measured.too_slow
    assert len(measured.timing.samples_us) == 1
    assert measured.timing.median_us > 1


def test_closed_evaluator_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    evaluator = DeviceEvaluator(["cuda:0"], 2)
    try:
        evaluator.begin_layer(SMALL)
        assert marked(mark)
    finally:
        evaluator.close()
    assert removing_leftovers(mark, 10.0)
