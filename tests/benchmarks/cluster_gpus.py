"""Tune a network on one GPU and on several GPUs of this host through the cluster; compare speed and winners.

    python -m tests.benchmarks.cluster_gpus --folder DIR [--study resnet50-fp16] [--trials 30] [--devices cuda:0 cuda:1]

The first run has a worker for the first device, on its share of the cores. The second run has a worker for each device,
each on as many cores. Both start with an empty database and no compiled kernels. Kernels per minute are counted from
the first kernel's start to the end of the last kernel or of the last finals; the whole run also starts and stops the
coordinator. The medians of the finals compare the winners of each layer, and their weighted sums the networks.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import find_study, load_study

NOISE = 0.03  # fraction by which a layer's best may differ between two runs
REGISTERED_S = 10.0  # seconds until all workers must have found the scheduler


@dataclass(frozen=True, slots=True)
class Run:
    """A study tuned by a worker for each device."""

    devices: int
    kernels: int
    """evaluated"""
    window_s: float
    whole_s: float
    best_us: dict[str, float]
    """layer to the median of its finals"""

    @property
    def kernels_a_minute(self) -> float:
        """Kernels per minute, from the first kernel's start to the last one's end."""
        return 60 * self.kernels / self.window_s

    def network_us(self, study: Study) -> float:
        """The sum over all layers, weighted by their counts."""
        return sum(layer.count * self.best_us[layer.name] for layer in study.layers)


def pinned(words: Sequence[object], cores: Sequence[int], cache: Path) -> subprocess.Popen[bytes]:
    """Start a process on these cores only, with its caches in a folder."""
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", *map(str, words)]
    settings = {"XDG_CACHE_HOME": str(cache), "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "warning"}
    return subprocess.Popen(command, env={**os.environ, **settings})


def tuned(folder: Path, study: Study, trials: int, devices: Sequence[str], share: int) -> Run:
    """Tune with a worker for each device on `share` cores each, which scheduler and coordinator also use."""
    cores = sorted(os.sched_getaffinity(0))[: share * len(devices)]
    cache, db = folder / "cache", folder / "results.db"
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    with ExitStack() as stack:

        def start(words: Sequence[object], own: Sequence[int]) -> None:
            process = pinned(words, own, cache)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start(scheduler, cores)
        for at, device in enumerate(devices):
            words = ["--device", device, "--compilers", share, "--name", f"worker-{at}"]
            start(["autotune", "worker", address, *words], cores[share * at : share * (at + 1)])
        time.sleep(REGISTERED_S)
        began = time.monotonic()
        tune = ["autotune", "tune", study.name, "--cluster", address, "--trials", trials, "--db", db, "-q"]
        if pinned(tune, cores, cache).wait():
            raise SystemExit(f"{len(devices)} devices: tune failed, see above")
        whole_s = time.monotonic() - began
    with Store(db) as store:
        rows = [row for row in store.trials.list(study.name) if row.trial.compiled and row.ended_at]
        finals = store.finals.list(study.name)
    ends = [row.ended_at for row in rows if row.ended_at] + [row.ended_at for row in finals]
    window_s = (max(ends) - min(row.started_at for row in rows)).total_seconds()
    best_us = {row.winner.layer.name: row.time_us for row in finals if row.time_us is not None}
    return Run(len(devices), len(rows), window_s, whole_s, best_us)


def lines(study: Study, one: Run, several: Run) -> Iterator[str]:
    """The two runs, the speedup, and the layers whose winners differ by more than the noise."""
    yield "| GPUs | kernels | window, s | whole, s | kernels a minute | network, us |"
    yield "|---|---|---|---|---|---|"
    for run in (one, several):
        yield (
            f"| {run.devices} | {run.kernels} | {run.window_s:.1f} | {run.whole_s:.1f} | {run.kernels_a_minute:.0f} "
            f"| {run.network_us(study):.1f} |"
        )
    ratios = {layer.name: several.best_us[layer.name] / one.best_us[layer.name] for layer in study.layers}
    yield f"{several.kernels_a_minute / one.kernels_a_minute:.2f} times the kernels a minute"
    yield f"network {several.network_us(study) / one.network_us(study):.3f} times as long"
    far = [f"{name} {ratio:.3f}" for name, ratio in ratios.items() if abs(ratio - 1) > NOISE]
    yield f"{len(far)} of {len(ratios)} winners differ by more than {NOISE:.0%}: {', '.join(far) or 'none'}"


def main() -> None:
    """Tune with one device, then with all, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--study", default="resnet50-fp16")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:1"])
    given = parser.parse_args()
    study = load_study(find_study(given.study))
    share = len(os.sched_getaffinity(0)) // len(given.devices)
    runs = []
    for devices in (given.devices[:1], given.devices):
        folder = given.folder / f"{len(devices)}-{time.time_ns()}"
        runs.append(tuned(folder, study, given.trials, devices, share))
        print(runs[-1], flush=True)
    print("\n".join(lines(study, *runs)))


if __name__ == "__main__":
    main()
