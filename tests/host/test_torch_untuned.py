"""PyTorch networks without a library: kernels are chosen untuned, compiled in the background, and kept for other
processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.exporting.build import Built
from tests.host.host_driver import OnHostDriver, host_driver
from tests.long_run import long_run

pytestmark = pytest.mark.cxx

pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_backends as backends  # noqa: E402
from tests import torch_networks as networks  # noqa: E402

CLOSE = 1e-5
"""Difference of two float32 networks, in units of the largest output."""


@pytest.fixture(scope="module")
def on_cpu(built: Built) -> Iterator[OnHostDriver]:
    with host_driver(built) as run:
        run(networks.support_cpu)
        yield run


def test_pytorch_runs_the_network_until_its_kernels_are_compiled(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    (first, rows), differences, again = on_cpu(networks.untuned, str(tmp_path))
    why = "its kernel is being compiled; the network's `report` will say more"
    assert [(row.swapped, row.why) for row in first] == [(False, why)] * 2
    assert [(row.layer, row.kernel, row.origin, row.swapped) for row in rows] == [
        ("conv1", "network.conv1", "default config", True),
        ("conv2", "network.conv2", "default config", True),
    ]
    assert max(differences) < CLOSE
    assert again == "GraphModule", "the libraries are in the cache"


def test_copies_wait_for_kernels(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    found = on_cpu(networks.copied, str(tmp_path))
    assert [count for count, _ in found] == [0, 0, 0]
    assert max(difference for _, difference in found) < CLOSE


def test_one_of_several_threads_converts_a_network(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    count, difference = on_cpu(networks.untuned_threads, str(tmp_path))
    assert count == 20
    assert difference < CLOSE


def test_a_network_has_kernels_for_several_sizes_of_images(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    rows, found = on_cpu(networks.in_new_sizes, str(tmp_path))
    assert [(row.layer, row.problem.shapes[0] if row.problem else "", row.swapped) for row in rows] == [
        ("0", "2x1x12x12", True),
        ("0", "2x1x16x16", True),
    ]
    assert len({row.kernel for row in rows}) == 2
    assert [count for count, _ in found] == [0, 0, 1, 1, 0], "PyTorch runs a new size until its kernel is compiled"
    assert max(difference for _, difference in found) < CLOSE


@pytest.mark.parametrize("rest", ["inductor", *long_run(("aot_eager",))])
def test_the_backend_runs_a_network_as_it_is_until_its_kernels_are_compiled(
    rest: str, on_cpu: OnHostDriver, tmp_path: Path
) -> None:
    first, lines, differences = on_cpu(backends.untuned, str(tmp_path), rest, wait=False)
    assert first == 0
    assert any("3 of 3 convolutions run tuned kernels (3 by default config)" in line for line in lines)
    assert max(differences) < CLOSE
    first, lines, differences = on_cpu(backends.untuned, str(tmp_path), rest, wait=False)
    assert first == len(lines) > 0, "the libraries are in the cache"
    assert max(differences) < CLOSE


def test_the_backend_waits_for_kernels_as_asked(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    first, _, differences = on_cpu(backends.untuned, str(tmp_path), "aot_eager", wait=True)
    assert first > 0
    assert max(differences) < CLOSE


def test_without_a_compiler_pytorch_runs_the_network_and_says_so_once(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    (warning,), difference, benchmark = on_cpu(networks.unbuilt, str(tmp_path))
    assert benchmark, "no run was seen"
    assert all(benchmark), "PyTorch keeps the algorithms of the first run, with which kernels are compared"
    assert "CXX=/no/such/compiler: is not a program that can be run" in warning
    assert warning.endswith("; PyTorch runs the network")
    assert difference == 0
