"""Check whether different seeds find equally fast kernels, and whether the finals change the winner. Run on a GPU:

    python tests/benchmarks/seeds.py lenet-k5 --seeds 5 --trials 200

Tunes every layer with each seed into an empty database, then times the winners of each layer interleaved.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.devices.host_machine import usable_cores
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.source import KernelSource
from autotune.family.template_files import load_templates
from autotune.measurement.benchmark import paired_ratio
from autotune.problem import Layer
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import find_study, load_study
from autotune.trial import Trial
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.tune import tune
from autotune.workers.worker import FinalsRequest


@dataclass(frozen=True, slots=True)
class Winner:
    """The result of one seed on one layer."""

    seed: int
    trial: Trial
    source: KernelSource
    evaluated: int
    seconds: float
    gain: float | None
    """finals time of the search's fastest kernel over the winner's, if the finals chose another kernel"""


def tuned(study: Study, layer: Layer, evaluator: DeviceEvaluator, finals_s: float) -> Winner:
    """Tune one layer from an empty database."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "seeds.db") as store:
        started = time.perf_counter()
        (result,) = tune(
            study, load_templates(), evaluator, store, layers=(layer,), finals=FinalsPlan(budget_s=finals_s)
        )
        seconds = time.perf_counter() - started
        assert result.best is not None, f"{layer.name}: nothing correct"
        gain = None
        if result.finals is not None and result.finals.moved:
            rows = store.query("SELECT trial_id, median_us FROM measurements WHERE finals_id IS NOT NULL").rows
            in_finals = {int(str(trial)): float(str(median)) for trial, median in rows}
            ranked = min((row for row in store.trials.list() if row.median_us), key=lambda row: row.median_us or 0.0)
            gain = in_finals[ranked.id] / result.finals.timing.median_us
        source = store.sources.get(result.best.source_hash or "")
        assert source is not None
        return Winner(study.seed, result.best, source, result.evaluated, seconds, gain)


def main() -> None:
    """Tune each layer with every seed, and compare the winners."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--layer", help="only this one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, help="of each seed's search, when its trials are not done by then")
    parser.add_argument("--finals-s", type=float, default=4.0)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    study = load_study(find_study(arguments.study))
    study = replace(study, trials=arguments.trials, time_budget_s=arguments.seconds)
    for layer in (layer for layer in study.layers if arguments.layer in (None, layer.name)):
        evaluator = DeviceEvaluator([arguments.device], usable_cores())
        winners = [
            tuned(replace(study, seed=seed), layer, evaluator, arguments.finals_s) for seed in range(arguments.seeds)
        ]
        evaluator.begin_layer(layer.problem)
        kernels = [(winner.source, evaluator.compile(winner.source).result()) for winner in winners]
        entered = (*kernels, kernels[0])
        timings = evaluator.finals(FinalsRequest(entered, (), study.measure.cache, arguments.finals_s, 0))
        evaluator.close()
        *own, again = timings.kernels
        low, _, high = paired_ratio(own[0].samples_us, again.samples_us)
        fastest = min(own, key=lambda timing: timing.median_us)
        for winner, timing in zip(winners, own, strict=True):
            moved = f", the finals chose it: {winner.gain:.4f} times" if winner.gain else ""
            print(
                f"{layer.name} seed {winner.seed}: {timing.median_us:.1f} us, "
                f"{timing.median_us / fastest.median_us:.4f} of the fastest, "
                f"{winner.evaluated} evaluations in {winner.seconds:.1f} s{moved}; {winner.trial.config}"
            )
        spread = max(timing.median_us for timing in own) / fastest.median_us - 1
        gains = [winner.gain - 1 for winner in winners if winner.gain]
        print(
            f"{layer.name}: {len(own)} winners within {spread:.2%}, A/A {max(abs(low - 1), abs(high - 1)):.2%}; "
            f"the finals changed {len(gains)} of {len(own)} winners"
            + (f", by {min(gains):.2%} to {max(gains):.2%}" if gains else "")
        )


if __name__ == "__main__":
    main()
