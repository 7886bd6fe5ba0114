"""Norms of PyTorch networks on an exported library of `norm`, which runs on the CPU here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.exporting import export_library
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from tests.compiled import built_for_host
from tests.exports import kernel
from tests.host.host_driver import OnHostDriver, host_driver

pytestmark = pytest.mark.cxx

pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_networks as networks  # noqa: E402
from tests import torch_norms as norms  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 networks, in units of the largest output."""


def problem(**values: int | str) -> Problem:
    return make_problem(operation("norm"), values)


@pytest.fixture(scope="module")
def on_cpu(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    groups = {"n": 2, "c": 8, "groups": 2, "eps_e12": 10**6}
    kernels = (
        kernel("norm_groups", "silu", problem(**groups, pixels=36, epilogue="weight_bias_silu")),
        kernel("norm_groups", "larger", problem(**groups, pixels=144, epilogue="weight_bias")),
        kernel("norm_rows", "two", problem(n=3, c=24)),
        kernel("norm_rows", "plain", problem(n=6, c=12, epilogue="none")),
        kernel("norm_rows", "pixels", problem(n=6, c=12, eps_e12=1, kind="rms", epilogue="weight_bias_silu")),
        kernel("norm_rows", "rms", problem(n=6, c=12, eps_e12=10**6, kind="rms", epilogue="weight")),
    )
    exported = export_library(kernels, tmp_path_factory.mktemp("exported"), ())
    built = built_for_host(exported, tmp_path_factory.mktemp("built"), cxx=cxx)
    with host_driver(built) as run:
        run(networks.support_cpu)
        yield run


@pytest.mark.parametrize("n", [2, 1, 5])
def test_group_norms_run_kernels_with_the_activation_that_only_they_feed(n: int, on_cpu: OnHostDriver) -> None:
    rows, summary, code, difference = on_cpu(norms.converted, "decoder", n)
    found = [(row.layer, row.words[1:4], row.kernel, row.swapped) for row in rows if row.kind == "norm"]
    assert found == [
        ("norm1", ("2x8x6x6", "2 groups", "weight_bias_silu"), "tested.silu", True),
        ("norm2", ("2x8x12x12", "2 groups", "weight_bias"), "tested.larger", True),
    ]
    assert summary == "0 of 2 convolutions and 2 of 2 norms run tuned kernels; fused into them: 1 SiLU"
    assert code.count("aten.silu") == 1, "the second has no kernel with its SiLU"
    assert "aten.group_norm" not in code
    assert difference < CLOSE


@pytest.mark.parametrize("n", [3, 1])
def test_norms_of_rows_run_kernels(n: int, on_cpu: OnHostDriver) -> None:
    rows, _, code, difference = on_cpu(norms.converted, "rows", n)
    assert [(row.layer, row.kernel) for row in rows if row.swapped] == [
        ("two", "tested.two"),
        ("layer_norm_1", "tested.plain"),
        ("rms", "tested.rms"),
    ]
    assert "aten.layer_norm" not in code
    assert "aten.rms_norm" not in code
    assert difference < CLOSE


@pytest.mark.parametrize("n", [2, 1])
def test_a_norm_that_is_written_out_runs_a_kernel(n: int, on_cpu: OnHostDriver) -> None:
    rows, _, code, difference = on_cpu(norms.converted, "pixels", n)
    assert [(row.kernel, row.swapped) for row in rows if row.kind == "norm"] == [("tested.pixels", True), ("", False)]
    assert code.count("aten.div") == code.count("aten.linalg_vector_norm") == 1, "the other's length is an output"
    assert difference < CLOSE


def test_norms_that_are_not_faster_are_left(on_cpu: OnHostDriver) -> None:
    rows, summary, code, difference = on_cpu(norms.converted, "decoder", 2, 1e9)
    assert all("times as" in row.why and "PyTorch's with its SiLU" in row.why for row in rows if row.kind == "norm")
    assert code.count("aten.group_norm") == 2
    assert difference == 0
    assert summary == "0 of 2 convolutions and 0 of 2 norms run tuned kernels"


def test_parameters_stay_and_other_inputs_are_pytorchs(on_cpu: OnHostDriver) -> None:
    new, changed, others = on_cpu(norms.parameters)
    assert new == set()
    assert changed < CLOSE
    assert max(others) < CLOSE


def test_norms_that_compute_something_else_on_the_example_are_left(on_cpu: OnHostDriver) -> None:
    names, difference = on_cpu(norms.disagreeing)
    assert names == ["norm2"]
    assert difference < CLOSE


def test_the_operator_of_an_exported_norm(on_cpu: OnHostDriver) -> None:
    schema, error, shape = on_cpu(norms.operator)
    assert schema.endswith("::norm(Tensor x, Tensor? weight, Tensor? bias, str call) -> Tensor")
    assert error < CLOSE
    assert shape == (3, 36, 8)


def test_dynamo_captures_converted_norms_and_the_backend_converts_them(on_cpu: OnHostDriver) -> None:
    assert on_cpu(norms.compiled) < CLOSE
    assert on_cpu(norms.by_backend) < CLOSE


def test_a_network_without_a_library_has_untuned_norms(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    rows, summary, difference = on_cpu(norms.untuned, str(tmp_path))
    assert [row.layer for row in rows if row.swapped] == ["norm1", "conv1", "norm2", "conv2"]
    assert "2 of 2 convolutions and 2 of 2 norms run tuned kernels (4 by default config)" in summary
    assert difference < CLOSE
