"""Pools, means and gates of PyTorch networks on exported libraries, which run on the CPU here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.exporting import export_library
from autotune.exporting.build import Built
from autotune.operation.registry import operation
from autotune.problem import make_problem
from tests.compiled import built_for_host
from tests.exports import kernel
from tests.host.host_driver import OnHostDriver, host_driver

pytestmark = pytest.mark.cxx

pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_gates as gates  # noqa: E402
from tests import torch_networks as networks  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 networks, in units of the largest output."""
ROUNDED = 2.0**-6
"""Difference of two bfloat16 networks."""
Sizes = dict[str, int | str]
WINDOWS: Sizes = {
    "h": 5,
    "w": 7,
    "r": 3,
    "s": 3,
    "stride_h": 2,
    "stride_w": 2,
    "pad_h": 1,
    "pad_w": 1,
    "layout": "nhwc",
}
EXCITED: Sizes = {
    "h": 5,
    "w": 7,
    "k": 8,
    "r": 1,
    "s": 1,
    "dtype": "bf16",
    "layout": "nhwc",
    "epilogue": "bias_add_relu",
}
KERNELS: dict[str, tuple[tuple[str, Sizes], ...]] = {
    "pixel_mean": (("pixel_mean_blocks", {"pixels": 35}), ("pixel_mean_blocks", {"pixels": 12})),
    "gate": (("gate_rows", {"pixels": 35}), ("gate_rows", {"pixels": 35, "dtype": "bf16"})),
    "max_pool2d": (("max_pool2d_rows", WINDOWS),),
    "avg_pool2d": (("avg_pool2d_max_pool2d_rows", WINDOWS | {"h": 3, "w": 4, "stride_h": 1, "stride_w": 1}),),
    "conv": (
        ("conv_mma_gemm", EXCITED | {"prologue": "scale"}),
        ("conv_mma_gemm", EXCITED | {"prologue": "scale_shift_relu"}),
    ),
    "conv2d": (("mma_gemm", EXCITED),),
}


@pytest.fixture(scope="module")
def libraries(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """The libraries by operation."""
    built = {}
    for name, families in KERNELS.items():
        kernels = [
            kernel(family, f"{name}{at}", make_problem(operation(name), {"n": 2, "c": 8, **sizes}))
            for at, (family, sizes) in enumerate(families)
        ]
        exported = export_library(tuple(kernels), tmp_path_factory.mktemp("exported"), ())
        built[name] = built_for_host(exported, tmp_path_factory.mktemp("built"), cxx=cxx)
    return built


@pytest.fixture(scope="module")
def on_cpu(libraries: dict[str, Built]) -> Iterator[OnHostDriver]:
    with host_driver(libraries["gate"]) as run:
        run(networks.support_cpu)
        yield run


@pytest.fixture
def paths(libraries: dict[str, Built]) -> list[str]:
    return [str(each.library) for each in libraries.values()]


@pytest.mark.parametrize("n", [2, 5])
def test_pools_and_gates_of_channels_last_images_run_kernels(n: int, on_cpu: OnHostDriver, paths: list[str]) -> None:
    rows, summary, code, difference = on_cpu(gates.converted, paths, n)
    assert [(*row.words[:3], row.kernel) for row in rows] == [
        ("adaptive_avg_pool2d", "2x8x5x7", "", "tested.pixel_mean0"),
        ("mul", "2x8x5x7", "", "tested.gate0"),
        ("max_pool2d", "2x8x5x7", "3x3", "tested.max_pool2d0"),
        ("avg_pool2d", "2x8x3x4", "3x3", "tested.avg_pool2d0"),
        ("mean_1", "2x8x3x4", "", "tested.pixel_mean1"),
    ]
    counts = "2 of 2 means, 1 of 1 gates, 1 of 1 max pools and 1 of 1 average pools"
    assert summary == f"0 of 0 convolutions, {counts} run tuned kernels"
    names = ("mul", "max_pool2d", "mean", "adaptive_avg_pool2d", "avg_pool2d.")
    assert [code.count(f"aten.{name}") for name in names] == [2, 1, 2, 1, 2]
    assert difference < CLOSE


@pytest.mark.parametrize("n", [2, 5])
def test_a_gate_before_a_convolution_is_in_its_kernel(n: int, on_cpu: OnHostDriver, paths: list[str]) -> None:
    rows, code, difference = on_cpu(gates.excited, [path for path in paths if "conv2d" not in path], n)
    assert rows[1:] == [
        ("mul", "tested.conv0", "in the kernel of conv"),
        ("conv", "tested.conv0", ""),
        ("mul_1", "tested.gate1", ""),
        ("other", "", ""),
    ]
    assert "aten.mul" not in code
    assert difference < ROUNDED


@pytest.mark.parametrize("n", [2, 5])
def test_a_batch_norm_before_a_convolution_is_in_its_kernel(n: int, on_cpu: OnHostDriver, paths: list[str]) -> None:
    rows, code, difference = on_cpu(gates.normed, paths, n)
    assert rows == [("norm", "tested.conv1", "in the kernel of conv"), ("conv", "tested.conv1", "")]
    assert "aten.relu" not in code
    assert difference < ROUNDED


def test_a_gate_is_in_the_faster_kernel(on_cpu: OnHostDriver, paths: list[str]) -> None:
    assert on_cpu(gates.raced, paths, 9.0)[1:3] == [("mul", "tested.conv0", ""), ("conv", "tested.conv0", "")]
    slower = "a kernel that also computes mul takes 11.0 us, and two kernels 10.0 us"
    assert on_cpu(gates.raced, paths, 11.0)[1:3] == [("mul", "tested.gate1", ""), ("conv", "tested.conv2d0", slower)]


def test_other_sizes_and_dtypes_and_compilers_give_the_same(on_cpu: OnHostDriver, paths: list[str]) -> None:
    assert max(on_cpu(gates.others, paths)) < CLOSE
