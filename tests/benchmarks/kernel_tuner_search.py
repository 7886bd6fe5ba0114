"""Score Kernel Tuner's search strategies on recorded spaces as `tests.benchmarks.replay` does. Run by hand:

    pip install kernel_tuner==1.5.0
    python -m tests.benchmarks.kernel_tuner_search tests/data/recorded-spaces/convolution_milo-A6000.json.gz \
        --strategy genetic_algorithm --strategy simulated_annealing --seeds 10

A recorded config costs one evaluation when it is first proposed, even if it failed. Repeats, and configs that the
recording lacks, are free. Each budget is a separate run, because some strategies depend on it. If a strategy ends
before its budget, its best result counts, also if it ends with an error of ERRORS. brute_force has no limit, so only
its first evaluations count. pyatf_strategies needs `pip install pyatf`, whose version 0.0.13 does not take the fourth
argument that Kernel Tuner 1.5.0 gives, and skopt `pip install scikit-optimize`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from kernel_tuner import util
from kernel_tuner.interface import Options, strategy_map
from kernel_tuner.runners.simulation import SimulationRunner
from kernel_tuner.searchspace import Searchspace

from autotune.trial import Config, Value
from tests.benchmarks.replay import Run, Score, score
from tests.recorded_spaces import Recording, read_recording

STRATEGIES = (
    "genetic_algorithm",
    "simulated_annealing",
    "adaptive_tabu_greywolf",
    "pso",
    "random_sample",
)
ERRORS = {
    "greedy_ils": (TypeError,),  # where a config has no neighbour
    "skopt": (ValueError,),  # "pvals contains NaNs" after failed configs
}


class Simulation:
    """One recording as Kernel Tuner sees it: its search space and what each config returns."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.params: dict[str, list[Value]] = {param.name: list(param.values) for param in recording.params}
        self.configs: dict[str, Config] = {}
        self.results: dict[str, Mapping[str, object]] = {}
        for row, time_us in enumerate(recording.times_us):
            config = recording.config(row)
            values = config.params
            outcome = {"time": float(time_us)} if math.isfinite(time_us) else {"__error__": util.RuntimeFailedConfig()}
            key = ",".join(str(values[name]) for name in self.params)
            self.configs[key] = config
            self.results[key] = {**{name: values[name] for name in self.params}, **outcome}

    def run(self, strategy: str, seed: int, evaluations: int) -> Run:
        """One search with a fresh search space (it caches neighbours), from one seed for all generators."""
        random.seed(seed)
        np.random.seed(seed)
        space = Searchspace(None, None, None, from_cache={"tune_params": self.params, "cache": self.results})
        evaluations = min(evaluations, space.size)
        runner = SimulationRunner(None, Options(kernel_name=self.recording.template), Options(quiet=True), 1, [])
        runner.run = partial(answers, runner.run)
        order = runner.visited_results = Ordered()
        space.max_threads, space.block_size_names = sys.maxsize, []
        options = Options(
            tune_params=self.params,
            cache=self.results,
            strategy=strategy,
            seed=seed,
            restrictions_unmodified=[],
            objective=["time"],
            objective_higher_is_better=[False],
            strategy_options=Options({} if strategy == "brute_force" else {"max_fevals": evaluations}),
            restrictions=[],
            metrics=None,
            verbose=False,
            budget=util.TuningBudget(None, space.size if strategy == "brute_force" else evaluations),
        )
        started = time.perf_counter()
        with suppress(*ERRORS.get(strategy, ())):
            strategy_map[strategy].tune(space, runner, options)
        each_s = (time.perf_counter() - started) / max(1, len(order))
        configs = tuple(self.configs[key] for key in [*order][:evaluations])
        elapsed_s = tuple(each_s * count for count in range(1, len(configs) + 1))
        return Run(self.recording.name, strategy, seed, configs, tuple(self._best(configs)), elapsed_s)

    def _best(self, configs: Sequence[Config]) -> Iterator[float]:
        least_us = math.inf
        for number, config in enumerate(configs):
            least_us = min(least_us, self.recording.trial(number, config).median_us or math.inf)
            yield least_us / self.recording.optimum_us


def answers(
    run: Callable[[Sequence[Sequence[Value]], Options], Sequence[object]],
    space: Iterable[Sequence[Value]],
    options: Options,
) -> Sequence[object]:
    """The result of each config; those that the recording lacks are invalid."""
    results: list[object] = []
    for values in space:
        if ",".join(map(str, values)) in options.cache:
            results += run([values], options)
        else:
            results.append({**dict(zip(options.tune_params, values, strict=True)), "__error__": util.InvalidConfig()})
    return results


class Ordered(dict[str, None]):
    """An ordered set of the configs that a runner has visited."""

    def add(self, key: str) -> None:
        """Note a config's first visit."""
        self.setdefault(key)


def main() -> None:
    """Score each strategy on each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--strategy", action="append", choices=sorted(strategy_map))
    parser.add_argument("--evaluations", default="50,100,200")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--json", action="store_true", help="print an array of objects, as `tests.benchmarks.replay --json`"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if "pyatf_strategies" in (arguments.strategy or ()):
        import pyatf

        pyatf.TP = partial(lambda param, *given: param(*given[:3]), pyatf.TP)
    budgets = [int(word) for word in arguments.evaluations.split(",")]
    simulations = [Simulation(read_recording(path)) for path in arguments.file]
    scores: list[Score] = []
    for strategy in arguments.strategy or STRATEGIES:
        for budget in budgets:
            runs = []
            for simulation in simulations:
                runs += [simulation.run(strategy, seed, budget) for seed in range(arguments.seeds)]
                print(f"{strategy} {budget} {simulation.recording.name}", file=sys.stderr)
            scores += score(runs, [budget])
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in scores], indent=1))
        return
    for row in scores:
        print(
            f"{row.file}  {row.sampler}  {row.evaluations}  median {row.median:.4f}  p90 {row.p90:.4f}  "
            f"within 5 % {row.within_5_percent:.0%}  {1e3 * row.seconds_per_evaluation:.1f} ms"
        )


if __name__ == "__main__":
    main()
