"""Count kernels compiled, verified and timed per minute, and compare with Kernel Tuner. Run on a GPU:

    python tests/benchmarks/throughput.py lenet-k5 --configs 200 --seconds 60

Prints a line for each layer: ours with the share of every phase, and Kernel Tuner 1.5, if it is installed, on the same
rendered kernels. Nothing is cached: every binary is compiled in this run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.source import KernelSource
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.store import Store
from autotune.study_reader import find_study, load_study
from autotune.trial import Outcome
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import tune

P = ParamSpec("P")
R = TypeVar("R")
LEAST_SAMPLES = 5  # least samples of a kernel that counts
NEAR = 1.05  # fraction of the final best
STORING = ("known_hashes", "known", "begin_trial", "end_trial", "add_trial", "reuse_trial")


class Watch:
    """Seconds during which at least one of the calls was running."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._under_way, self._since = 0, 0.0

    def _add(self, calls: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self.seconds += now - self._since if self._under_way else 0.0
            self._under_way, self._since = self._under_way + calls, now

    def over(self, call: Callable[P, R]) -> Callable[P, R]:
        """The same call, with its time added."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            self._add(1)
            try:
                return call(*args, **kwargs)
            finally:
                self._add(-1)

        return timed


def ours(study_name: str, layer: Layer, configs: int, devices: Sequence[str], folder: Path) -> list[KernelSource]:
    """Tune one layer from an empty database and print the time; returns the sources that were evaluated."""
    study = replace(load_study(find_study(study_name)), trials=configs, templates=("direct", "implicit_gemm"))
    evaluator = DeviceEvaluator(devices, len(os.sched_getaffinity(0)))
    templates = load_templates()
    reached: list[tuple[float, float]] = []
    storing, asking = Watch(), [Watch() for _ in devices]
    for worker, watch in zip(evaluator._workers, asking, strict=True):
        worker.evaluate = watch.over(worker.evaluate)  # type: ignore[method-assign]

    def observe(progress: Progress) -> None:
        if progress.best and progress.best.median_us and not progress.ended:  # what follows are the finals
            reached.append((time.perf_counter() - started, progress.best.median_us))

    with Store(folder / "throughput.db") as store:
        for name in STORING:
            setattr(store, name, storing.over(getattr(store, name)))
        started = time.perf_counter()
        tune(study, templates, evaluator, store, layers=(layer,), observe=observe, finals=FinalsPlan(budget_s=0.5))
        wall_s = time.perf_counter() - started
        rows = [row.trial for row in store.trials.list(f"{study.name}.{layer.name}") if row.trial.compiled]
        evaluator.close()
        timed = [t for t in rows if t.outcome == Outcome.CORRECT and t.timing]
        full = [t for t in timed if t.timing and len(t.timing.samples_us) >= LEAST_SAMPLES]
        sources = [store.sources.get(trial.source_hash or "") for trial in rows]
    phases = {
        name: sum(getattr(trial.phases, f"{name}_us") for trial in rows) / 1e6
        for name in ("render", "compile", "load", "verify", "measure")
    }
    busy_s = phases["load"] + phases["verify"] + phases["measure"]
    end_s = reached[-1][0]
    near_s = next(at for at, best in reached if best <= NEAR * reached[-1][1])
    words = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())
    print(
        f"{layer.name}: autotune {60 * len(full) / end_s:.0f} kernels/min verified and timed with {LEAST_SAMPLES} "
        f"samples or more ({len(full)} in {end_s:.1f} s; {len(rows) - len(full)} more failed or stopped early as too "
        f"slow), devices busy {busy_s / end_s / len(devices):.0%}, within 5 % of the best after {near_s:.1f} s, with "
        f"finals {wall_s:.1f} s; {words}; store {1e3 * storing.seconds / len(rows):.1f} ms and transport "
        f"{1e3 * (sum(watch.seconds for watch in asking) - busy_s) / len(rows):.1f} ms per trial"
    )
    return [source for source in sources if source is not None]


def kernel_tuner(layer: Layer, sources: list[KernelSource], seconds: float) -> None:
    """Run the same kernels with Kernel Tuner, one after another, for at most `seconds`."""
    try:
        from kernel_tuner import tune_kernel
    except ImportError:
        print(f"{layer.name}: Kernel Tuner is not installed here")
        return
    problem = layer.problem
    rng = np.random.default_rng(0)
    x = rng.standard_normal(problem.array("x").elements, dtype=np.float32)
    w = rng.standard_normal(problem.array("w").elements, dtype=np.float32)
    bias = np.zeros(int(problem.values["k"]), np.float32)
    y = np.zeros(problem.array("y").elements, np.float32)
    done, failed, started = 0, "", time.perf_counter()
    for source in sources:
        if time.perf_counter() - started > seconds:
            break
        if source.constants or len(source.stages) > 1:
            continue  # it has no device-to-device copy into a constant array
        stage = source.stages[0]
        scalars = {"n": np.int32(problem.runtime_size), "i": np.int32(0)}
        arrays = {"x": x, "w": w, "bias": bias, "y": y}
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                tune_kernel(
                    stage.entry,
                    source.program.text,
                    (stage.grid[0], stage.grid[1], stage.grid[2]),
                    [scalars.get(name, arrays.get(name)) for name in stage.args],
                    {
                        "block_size_x": [stage.block[0]],
                        "block_size_y": [stage.block[1]],
                        "block_size_z": [stage.block[2]],
                    },
                    grid_div_x=[],
                    grid_div_y=[],
                    grid_div_z=[],
                    smem_args={"size": stage.smem_bytes},
                    compiler_options=["-std=c++17"],
                    lang="CUDA",
                )
            except Exception as error:  # noqa: BLE001 - a peer's failure is a result
                failed = f"; {type(error).__name__}: {str(error).splitlines()[0][:80]}"
                continue
        done += 1
    spent = time.perf_counter() - started
    print(
        f"{layer.name}: Kernel Tuner {60 * done / spent:.0f} kernels/min ({done} in {spent:.1f} s, unverified){failed}"
    )


def main() -> None:
    """Measure each layer of a study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--layer", help="only this one")
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="of Kernel Tuner, for each layer")
    parser.add_argument("--device", default="cuda:0", help="one, or several with commas between them")
    arguments = parser.parse_args()
    layers = load_study(find_study(arguments.study)).layers
    for layer in (layer for layer in layers if arguments.layer in (None, layer.name)):
        with tempfile.TemporaryDirectory() as folder:
            sources = ours(arguments.study, layer, arguments.configs, arguments.device.split(","), Path(folder))
            if arguments.seconds:
                kernel_tuner(layer, sources, arguments.seconds)


if __name__ == "__main__":
    main()
