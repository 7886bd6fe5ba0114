"""Concatenations of PyTorch networks on an exported library of `concat`, which runs on the CPU here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.exporting import export_library
from autotune.operation.registry import operation
from autotune.problem import make_problem
from tests.compiled import built_for_host
from tests.exports import kernel
from tests.host.host_driver import OnHostDriver, host_driver

pytestmark = pytest.mark.cxx

pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_concats as concats  # noqa: E402
from tests import torch_networks as networks  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 networks, in units of the largest output."""
KERNELS = (
    ("eight", (4,) * 8, "none"),
    ("normed", (32, 4), "weight_bias_relu"),
    ("last", (32, 4, 4), "none"),
)


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    kernels = [
        kernel(
            "concat_rows",
            name,
            make_problem(
                operation("concat"),
                {"n": 30, **{f"c{i}": size for i, size in enumerate(channels)}, "epilogue": epilogue},
            ),
        )
        for name, channels, epilogue in KERNELS
    ]
    exported = export_library(tuple(kernels), tmp_path_factory.mktemp("exported"), ())
    with host_driver(built_for_host(exported, tmp_path_factory.mktemp("built"), cxx=cxx)) as run:
        run(networks.support_cpu)
        yield run


@pytest.mark.parametrize("n", [2, 5])
def test_concatenations_run_kernels_with_the_batch_norm_and_the_activation_after_them(
    n: int, on_cpu: OnHostDriver
) -> None:
    rows, summary, code, difference = on_cpu(concats.converted, n)
    assert [(row.words[1:4], row.kernel) for row in rows if row.swapped] == [
        (("2x32x3x5", "4+4+4+4+4+4+4+4", "none"), "tested.eight"),
        (("2x36x3x5", "32+4", "weight_bias_relu"), "tested.normed"),
        (("2x40x3x5", "32+4+4", "none"), "tested.last"),
    ]
    counts = "0 of 0 convolutions, 3 of 3 concatenations and 0 of 1 batch norms"
    assert summary == f"{counts} run tuned kernels; fused into them: 1 ReLU"
    assert code.count("aten.cat") == 1, "of a tensor that is not stored channels-last"
    assert code.count("aten.batch_norm") == 1
    assert difference < CLOSE


def test_concatenations_that_are_not_faster_are_left(on_cpu: OnHostDriver) -> None:
    rows, _, code, difference = on_cpu(concats.converted, 2, 1e9)
    assert all("times as" in row.why and "PyTorch's" in row.why for row in rows if row.kind == "concatenation")
    assert code.count("aten.cat") == 4
    assert difference == 0


def test_a_tensor_that_changes_between_two_concatenations_is_read_again(on_cpu: OnHostDriver) -> None:
    assert on_cpu(concats.overwritten) == 0


def test_other_sizes_and_dtypes_and_compilers_give_the_same(on_cpu: OnHostDriver) -> None:
    assert max(on_cpu(concats.others)) < CLOSE
