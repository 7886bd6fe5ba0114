"""The time of a network after one minute of tuning and after five, each from an empty database.

    python tests/benchmarks/network_budget.py STUDY FOLDER [--budgets 60 300] [--device cuda:0]

Each budget is a run of `autotune tune`, whose total time is also printed. Then the winners of all runs are verified and
timed interleaved, layer by layer, because finals of different runs cannot be compared. Every line is printed, and
written to FOLDER/STUDY-budgets.txt, as soon as it is known.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.api.device_names import evaluator_of
from autotune.devices.host_machine import usable_cores
from autotune.evaluation.evaluator import Evaluator
from autotune.family.source import KernelSource
from autotune.problem import Layer
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import find_study, load_study
from autotune.workers.worker import FinalsRequest

MOST_TRIALS = 100_000  # per layer: only time ends a run


@dataclass(frozen=True, slots=True)
class Tuned:
    """A run with one budget."""

    budget_s: float
    took_s: float
    db: Path


def tuned(study: str, folder: Path, budget_s: float, device: str) -> Tuned:
    """Tune from an empty database; an existing database is not tuned again."""
    db = folder / f"{Path(study).stem}-{budget_s:g}.db"
    started = time.monotonic()
    if not db.exists():
        limits = ["--time-budget-total", f"{budget_s:g}", "--trials", str(MOST_TRIALS)]
        command = [sys.executable, "-m", "autotune", "tune", study, *limits, "--device", device, "--db", str(db), "-q"]
        cache = {"XDG_CACHE_HOME": str(folder.resolve() / f"cache-{budget_s:g}")}  # no kernel is compiled in advance
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **cache})
    return Tuned(budget_s, time.monotonic() - started, db)


def winner(db: Path, study: Study, layer: Layer) -> KernelSource:
    """The fastest kernel of a layer that its study admits."""
    admitted = study.admitted(layer.problem)
    with Store(db, create=False) as store:
        rows = [row for row in store.best.list(layer.problem) if row.row.trial.accuracy in admitted]
        if not rows:
            raise SystemExit(f"{db} has no kernel of {study.name}.{layer.name}: give it a larger budget")
        source = store.sources.get(min(rows, key=lambda row: row.median_us).row.trial.source_hash or "")
    assert source is not None
    return source


def medians_us(
    layer: Layer, sources: Sequence[KernelSource], cache: str, evaluator: Evaluator, seconds: float
) -> list[float]:
    """The kernels' times, interleaved; one time for a kernel that several runs found."""
    unlike = list({source.hash: source for source in sources}.values())
    compiled = [evaluator.compile(source) for source in unlike]
    evaluator.begin_layer(layer.problem)
    kernels = [(source, each.result()) for source, each in zip(unlike, compiled, strict=True)]
    for source, binary in kernels:
        evaluator.evaluate(source, binary, cache=cache, best_us=None)
    times = evaluator.finals(FinalsRequest(tuple(kernels), (), cache, seconds, 0)).kernels
    us = {source.hash: timing.median_us for source, timing in zip(unlike, times, strict=True)}
    return [us[source.hash] for source in sources]


def compared(
    study: Study, runs: Sequence[Tuned], evaluator: Evaluator, seconds: float, say: Callable[[str], None]
) -> None:
    """A line for each layer, then the network's times and how much slower each run is than the last one."""
    sums = [0.0] * len(runs)
    say(f"{'layer':32} {'count':>5} " + " ".join(f"{f'{run.budget_s:g} s, us':>12}" for run in runs) + "  first / last")
    for layer in study.layers:
        sources = [winner(run.db, study, layer) for run in runs]
        times = medians_us(layer, sources, study.measure.cache, evaluator, seconds)
        sums = [total + layer.count * us for total, us in zip(sums, times, strict=True)]
        cells = " ".join(f"{us:12.2f}" for us in times)
        say(f"{layer.name:32} {layer.count:5d} {cells}  {times[0] / times[-1]:.3f}")
    cells = " ".join(f"{us:12.2f}" for us in sums)
    say(f"{'sum':32} {sum(layer.count for layer in study.layers):5d} {cells}  {sums[0] / sums[-1]:.3f}")


def main() -> None:
    """Tune with each budget, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="a study's file or name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budgets", type=float, nargs="+", default=[60.0, 300.0], help="seconds in total")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing the winners of a layer")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    study = load_study(find_study(given.study))
    with (given.folder / f"{study.name}-budgets.txt").open("a") as file:

        def say(line: str) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        runs = []
        for budget_s in given.budgets:
            runs.append(tuned(given.study, given.folder, budget_s, given.device))
            with Store(runs[-1].db, create=False) as store:
                evaluated = len(store.trials.list())
            say(f"{study.name}, {budget_s:g} s: {evaluated} trials, {runs[-1].took_s:.1f} s by the clock")
        evaluator = evaluator_of(given.device, usable_cores())
        try:
            compared(study, runs, evaluator, given.seconds, say)
        finally:
            evaluator.close()


if __name__ == "__main__":
    main()
