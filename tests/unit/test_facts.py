"""Facts about a kernel without a profiler, computed by hand for a few, and as `best` and `trials` print them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.analysis.rooflines import facts
from autotune.devices.device import DeviceInfo, Rate
from autotune.exporting.kernel import provenance, recorded_origin
from autotune.family.source import Stage
from autotune.measurement.occupancy import residency
from autotune.measurement.traffic import minimal_bytes
from autotune.problem import Conv2dProblem
from autotune.store import Store
from autotune.trial import Resources
from tests.fork_server import ForkServer

from .store.builders import DRIVER_580, H200, HOST, add_end_to_end, config_of, correct, open_scope, run_trial, source_of

TITAN_V = DeviceInfo("cuda", "TITAN V", 70, 80, 12_000_000_000, smem_per_sm_bytes=98304)
CONV1 = Conv2dProblem(10000, 1, 70, 70, 12, 5, 5)
RATES = {"copy": 4e12, "fp32": 60e12}
FLOOR_US = minimal_bytes(CONV1) / 4e12 * 1e6  # bytes limit conv1


def test_report_003s_tile_of_24_is_limited_by_warps_and_registers() -> None:
    held = residency(TITAN_V, threads=24 * 24, registers=30, smem_bytes=4608)
    assert (held.blocks, held.warps, held.limits) == (3, 54, ("registers", "warps"))
    assert held.occupancy == pytest.approx(0.837, abs=0.01)  # the profiler's, achieved


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "blocks", "limits"),
    [
        (256, 128, 0, 2, ("registers",)),
        (128, 32, 100_000, 2, ("shared memory",)),
        (1024, 32, 1024, 2, ("registers", "warps")),
        (32, 16, 0, 32, ("blocks",)),
        (1024, 255, 0, 0, ("registers",)),
    ],
)
def test_each_resource_can_be_the_limit(
    threads: int, registers: int, smem_bytes: int, blocks: int, limits: tuple[str, ...]
) -> None:
    held = residency(H200, threads=threads, registers=registers, smem_bytes=smem_bytes)
    assert (held.blocks, held.limits) == (blocks, limits)


def stage(threads: int, smem_bytes: int = 0) -> Stage:
    return Stage("conv2d", ("x", "w", "y", "n"), (threads, 1, 1), (1, 1, 1), smem_bytes)


@pytest.mark.parametrize(
    ("problem", "median_us", "threads", "limiter"),
    [
        (CONV1, FLOOR_US / 0.9, 256, "memory"),
        (replace(CONV1, c=100, h=20, w=20), 1e6 * 2 * 10000 * 12 * 256 * 2500 / 60e12 / 0.7, 256, "arithmetic"),
        (CONV1, FLOOR_US / 0.3, 256, "latency"),
        (CONV1, FLOOR_US / 0.3, 32 * 14, "latency"),
        (CONV1, FLOOR_US / 0.3, 1, "latency"),
    ],
)
def test_the_limiter_is_the_floors_larger_term_near_it(
    problem: Conv2dProblem, median_us: float, threads: int, limiter: str
) -> None:
    found = facts(H200, problem, "fp32", [stage(threads)], Resources(32), median_us, RATES)
    assert found.limiter == limiter
    assert found.gb_per_s == pytest.approx(minimal_bytes(problem) / median_us / 1e3)


def test_few_warps_are_named_far_from_the_floor() -> None:
    few = [stage(256), stage(64, smem_bytes=200_000)]  # the second stage allows one block of two warps
    found = facts(H200, CONV1, "fp32", few, Resources(32), FLOOR_US / 0.3, RATES)
    assert found.residency is not None
    assert (found.residency.warps, found.residency.limits, found.limiter) == (2, ("shared memory",), "occupancy")


def test_nothing_is_claimed_without_a_calibration_a_gpu_or_a_time() -> None:
    uncalibrated = facts(H200, CONV1, "fp32", [stage(256)], Resources(32), 100.0, {})
    assert (uncalibrated.floor_fraction, uncalibrated.limiter) == (None, None)
    assert uncalibrated.residency is not None
    assert facts(HOST, CONV1, "fp32", [stage(256)], Resources(), 100.0, RATES).floor is None, "a CPU's mean nothing"
    on_host = facts(HOST, CONV1, "fp32", [stage(256)], Resources(), 100.0, RATES)
    assert (on_host.residency, on_host.limiter) == (None, None)
    untimed = facts(H200, CONV1, "fp32", [stage(256)], Resources(32), None, RATES)
    assert (untimed.gb_per_s, untimed.floor, untimed.limiter) == (None, None, None)


@pytest.fixture
def printed(tmp_path: Path, fork_server: ForkServer) -> Mapping[str, Mapping[str, object]]:
    """`best` and `trials` as JSON: a kernel on a GPU and on the host, and an end-to-end trial."""
    with Store(tmp_path / "autotune.db") as store:
        for device in (H200, HOST):
            source = source_of(config_of(0))
            trial = correct(0, 30.0, source=source)
            if device is HOST:
                trial = replace(trial, resources=Resources(), occupancy=None)
            run_trial(store, open_scope(store, device=device), trial, source)
        add_end_to_end(store, 0, 2500.0)
        store.rates.add(H200, DRIVER_580, [Rate(unit, "", per_s) for unit, per_s in RATES.items()])
    best = json.loads(fork_server.run(tmp_path, "best", "--json").out)
    trials = json.loads(fork_server.run(tmp_path, "trials", "--json").out)
    (end_to_end,) = (row for row in trials if row["template"] == "end_to_end")
    return {
        "best cuda": next(row for row in best if row["device"] == H200.name),
        "best host": next(row for row in best if row["device"] == HOST.name),
        "trial cuda": next(row for row in trials if row["device"] == H200.name and row is not end_to_end),
        "trial host": next(row for row in trials if row["device"] == HOST.name),
        "end to end": end_to_end,
    }


def test_best_and_trials_print_the_facts(printed: Mapping[str, Mapping[str, object]]) -> None:
    for name in ("best cuda", "trial cuda"):
        row = printed[name]
        # 128 threads of 64 registers: 8 warps of 2048 registers in each of 4 subpartitions
        assert (row["registers"], row["blocks_per_sm"], row["warps_per_sm"]) == (64, 8, 32)
        assert (row["occupancy"], row["occupancy_limits"]) == (0.5, ["registers"])
        bytes_moved = minimal_bytes(CONV1.with_runtime(100))
        assert row["gb_per_s"] == pytest.approx(bytes_moved / 30.0 / 1e3)
        assert row["floor_fraction"] == pytest.approx(bytes_moved / 4e12 * 1e6 / 30.0)
        assert row["limiter"] == "latency"
    for name in ("best host", "trial host"):
        row = printed[name]
        assert {row[key] for key in ("registers", "spill_bytes", "blocks_per_sm", "occupancy", "limiter")} == {None}
        assert row["gb_per_s"] is not None
    assert (printed["end to end"]["floor_fraction"], printed["end to end"]["limiter"]) == (None, None)


def test_a_kernel_that_beats_its_floor_is_no_silent_103_percent(tmp_path: Path, fork_server: ForkServer) -> None:
    with Store(tmp_path / "autotune.db") as store:
        source = source_of(config_of(0))
        run_trial(store, open_scope(store), correct(0, 30.0, source=source), source)
        (row,) = store.best.list()
        assert "reaches 103.0% of it, so the device's rates were measured too low" in provenance(
            recorded_origin(row, 30.9), source
        )
        assert "reaches 97.0% of it\n" in provenance(recorded_origin(row, 29.1), source)
        true_per_s = minimal_bytes(row.layer.problem) / row.median_us * 1e6
        store.rates.add(H200, DRIVER_580, [Rate("copy", "", true_per_s / 1.03)])
    words = (
        f"{H200.name}: lenet.conv1 is 3.0% faster than its floor, so the floor is wrong: the device's stored rates are "
        f"too low; run `autotune devices --calibrate` there\n"
    )
    for command in (("best",), ("best", "--json"), ("trials",), ("why", "lenet.conv1")):
        assert fork_server.run(tmp_path, *command).err == words, command
    with Store(tmp_path / "autotune.db") as store:
        store.rates.add(H200, DRIVER_580, [Rate("copy", "", true_per_s * 1.03)])
    assert fork_server.run(tmp_path, "best").err == ""
    flops = row.layer.problem.flops
    with Store(tmp_path / "autotune.db") as store:  # as if the operation declared 1.5 times what the device can do
        store.rates.add(H200, DRIVER_580, [Rate("fp32", "", flops / row.median_us * 1e6 / 1.5)])
    told = fork_server.run(tmp_path, "best").err
    rate = flops / row.median_us / 1e6
    rates = f"{flops:.4g} FLOP in 30 us are {rate:.4g} TFLOP/s, and the device's rate is {rate / 1.5:.4g}"
    assert f"{rates}; `flops` counts too many, or the device's stored rates are too low" in told
