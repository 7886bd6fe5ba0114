"""A network on kernels: float64 agrees with NumPy, exact enough kernels change no class, a wrong tap changes many."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from autotune import tune
from autotune.compilation.compile import Binary
from autotune.devices.host import HostDevice
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, load_templates
from autotune.measurement.reference import check_program
from autotune.measurement.storage import encoded, stored
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.benchmarks.class_agreement import Array, Network, NetworkSpec, decoded, main, pooled
from tests.compiled import compiled
from tests.injected_faults import GOOD
from tests.long_run import long_run

pytestmark = pytest.mark.cxx

FIRST = Conv2dProblem(20, 1, 14, 13, 4, 3, 3, epilogue="bias")  # 12x11, pooled 6x5
SECOND = Conv2dProblem(9, 4, 6, 5, 6, 3, 3, pad_h=1, pad_w=1)  # 6x5, pooled 3x2
SPEC = NetworkSpec(FIRST, SECOND, images=250, seed=3)
TAP = "sum += w[((k * C + c) * R + r) * S + s]"


def references(cxx: str, spec: NetworkSpec) -> tuple[Binary, Binary]:
    first, second = (compiled(check_program(problem, "f64"), cxx=cxx) for problem in (spec.first, spec.second))
    return first, second


@pytest.fixture(scope="module")
def network(device: HostDevice, cxx: str) -> Network:
    return Network(device, SPEC, references(cxx, SPEC))


def kernel(
    device: HostDevice, cxx: str, problem: Conv2dProblem, edit: tuple[str, str] | None = None
) -> tuple[KernelSource, Binary]:
    """The tests' family on a problem, with one replacement in its rendered text."""
    bound = BoundTemplate(load_template(GOOD), problem, device.info)
    source = render(bound, Config.of("shared_tile", {"tile": 16, "images": 2}))
    if edit:
        assert source.program.text.count(edit[0]) == 1
        program = dataclasses.replace(source.program, text=source.program.text.replace(*edit))
        source = dataclasses.replace(source, program=program)
    return source, compiled(source.program, cxx=cxx)


def test_right_kernels_change_no_class(network: Network, device: HostDevice, cxx: str) -> None:
    found = network.agreement((kernel(device, cxx, FIRST), kernel(device, cxx, SECOND)))
    assert (found.images, found.agreeing, found.fraction) == (250, 250, 1.0)
    assert found.largest_difference is not None
    assert 0 < found.largest_difference < 1e-4
    assert 0.1 <= found.largest_share <= 0.3


@pytest.mark.parametrize("layer", [0, 1])
def test_one_wrong_tap_lowers_the_agreement_visibly(network: Network, device: HostDevice, cxx: str, layer: int) -> None:
    wrong = (TAP, "sum += w[((k * C + c) * R + r) * S + (r == 1 && s == 1 ? 2 : s)]")
    kernels = [kernel(device, cxx, FIRST), kernel(device, cxx, SECOND)]
    kernels[layer] = kernel(device, cxx, (FIRST, SECOND)[layer], wrong)
    found = network.agreement((kernels[0], kernels[1]))
    assert found.fraction < 0.9
    assert found.largest_difference is not None
    assert found.largest_difference > 0.1


def test_outputs_that_are_never_written_do_not_pass(network: Network, device: HostDevice, cxx: str) -> None:
    silent = kernel(device, cxx, SECOND, ("p < P && q < Q", "p < P && q < Q && q != 1"))
    found = network.agreement((kernel(device, cxx, FIRST), silent))
    assert found.largest_difference is None
    assert found.fraction < 0.5


def test_float64_is_the_convolution_on_doubles(network: Network, device: HostDevice, cxx: str) -> None:
    """The whole network again in NumPy, from the same images and weights."""
    first, second = network._weights

    def convolved(x: Array, w: Array, pad: int) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        y: Array = np.einsum("ncpqrs,kcrs->nkpq", windows, w)
        return y

    y = pooled(convolved(network._x.astype(np.float64), first.w, 0) + first.bias[:, None, None])
    y = pooled(convolved(y, second.w, 1))
    hidden = y.reshape(250, -1) @ network._dense[0]
    hidden = np.maximum((hidden - hidden.mean(axis=0)) / hidden.std(axis=0), 0.0)
    logits = hidden @ network._dense[1]
    logits = (logits - logits.mean(axis=0)) / logits.std(axis=0)
    np.testing.assert_allclose(network.logits, logits, atol=1e-9)


def test_seed_decides_the_network(device: HostDevice, cxx: str, network: Network) -> None:
    small = dataclasses.replace(SPEC, images=20)
    again, other = (Network(device, dataclasses.replace(small, seed=seed), references(cxx, small)) for seed in (3, 4))
    assert not np.allclose(again.logits, other.logits)
    same = Network(device, small, references(cxx, small))
    np.testing.assert_array_equal(again.logits, same.logits)


@pytest.mark.parametrize(("layout", "dtype"), [("nchw", "f16"), *long_run(("nhwc", "f32"), ("nchw", "bf16"))])
def test_other_layouts_and_storage_types(device: HostDevice, cxx: str, layout: str, dtype: str) -> None:
    """Rounded storage changes some classes, but not many: the weights and images are rounded for float64 as well."""
    first, second = (
        dataclasses.replace(problem, layout=layout, dtype=dtype, epilogue="none") for problem in (FIRST, SECOND)
    )
    spec = NetworkSpec(first, second, images=40, seed=0)
    network = Network(device, spec, references(cxx, spec))
    kernels = []
    for problem in (first, second):
        bound = BoundTemplate(load_templates()["implicit_gemm"], problem, device.info)
        config = SearchSpace(bound, seed=0).default
        assert config is not None
        source = render(bound, config)
        kernels.append((source, compiled(source.program, cxx=cxx)))
    found = network.agreement((kernels[0], kernels[1]))
    assert found.largest_difference is not None
    assert 0 < found.largest_difference < {"f32": 1e-4, "f16": 0.05, "bf16": 0.5}[dtype]
    assert found.fraction >= {"f32": 1.0, "f16": 0.95, "bf16": 0.8}[dtype]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_stored_values_are_kept_exactly(dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    kept = stored(values, dtype)
    np.testing.assert_array_equal(decoded(encoded(kept, dtype), dtype), kept)
    assert abs(kept - values).max() <= {"f32": 2e-7, "f16": 2e-3, "bf16": 1.6e-2}[dtype]


def test_pooling_takes_the_largest_and_drops_an_odd_edge() -> None:
    y = np.arange(-7.0, 8.0).reshape(1, 1, 3, 5)
    np.testing.assert_array_equal(pooled(y), [[[[0.0, 1.0]]]])


STUDY = """name = "chain"
trials = 1
templates = ["shared_tile"]
layer = [
  { name = "conv1", n = 32, c = 1, h = 14, w = 13, k = 4, r = 3, s = 3 },
  { name = "conv2", n = 20, c = 4, h = 6, w = 5, k = 6, r = 3, s = 3, pad = 1, epilogue = "bias_relu" },
]
"""


def test_the_benchmark_runs_a_tuned_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.toml").write_text(STUDY)
    tune("chain.toml", device="host", templates=[GOOD.parent], jobs=1)
    assert main(["chain.toml", "--device", "host", "--images", "300"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("fp32: 300 of 300 images agree; ")
