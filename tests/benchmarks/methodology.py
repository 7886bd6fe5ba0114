"""Score search strategies on recorded spaces by performance over time against random search. Run by hand:

    pip install autotuning_methodology==1.1.0
    python -m tests.benchmarks.methodology tests/data/recorded-spaces/h200/*.gz --seeds 20

The package computes the score (Willemsen et al. 2024, https://doi.org/10.1016/j.future.2024.05.021): 1 is the optimum
from the start, 0 is as good as random search, below 0 is worse. It covers the time in which random search gets from 1 %
to 95 % of the way from the median to the optimum. Every evaluation counts as one second, because recordings of other
projects have no compile times; the search itself takes no time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from autotuning_methodology.caching import ResultsDescription
from autotuning_methodology.report_experiments import get_aggregation_data, get_strategies_aggregated_performance
from autotuning_methodology.searchspace_statistics import SearchspaceStatistics
from kernel_tuner.interface import strategy_map

from autotune.trial import Config
from tests.benchmarks.kernel_tuner_search import STRATEGIES, Simulation
from tests.benchmarks.replay import replay_once
from tests.recorded_spaces import Recording, read_recording

START, END = 0.01, 0.95
"""Shares of the way from the median to the optimum, as in the package's defaults."""
OURS = "default"
GPU = "recorded"


def statistics(recording: Recording, file: str, folder: Path) -> SearchspaceStatistics:
    """The package's view of a recording: a time of one second and a performance for each config."""
    path = folder / file
    measured = [{"times": {"runtimes": 1.0}, "measurements": [{"name": "time", "value": t}]} for t in _times(recording)]
    path.write_text(json.dumps({"metadata": {}, "schema_version": "1.0.0", "results": measured}))
    return SearchspaceStatistics(file, GPU, True, ["runtimes"], ["time"], path, full_validate=False)


def results(
    recording: Recording, space: SearchspaceStatistics, strategy: str, runs: list[tuple[Config, ...]]
) -> ResultsDescription:
    """The runs of a strategy as the package stores them: arrays [evaluations, runs]."""
    times_us = np.full((max(map(len, runs)), len(runs)), np.nan)
    for column, configs in enumerate(runs):
        trials = [recording.trial(number, config) for number, config in enumerate(configs)]
        times_us[: len(trials), column] = [trial.median_us or np.nan for trial in trials]
    best = np.fmin.accumulate(times_us)
    seconds = np.repeat(np.arange(1.0, len(best) + 1)[:, None], len(runs), axis=1)
    described = ResultsDescription(
        Path(space.full_search_space_file_path).parent / strategy,
        space.application_name,
        GPU,
        strategy,
        strategy,
        True,
        ["runtimes"],
        ["time"],
        True,
    )
    arrays: dict[str, npt.NDArray[np.float64]] = {
        "fevals_results": seconds,
        "objective_time_results": seconds.copy(),
        "objective_performance_results": times_us,
        "objective_performance_best_results": best,
        "objective_performance_stds": np.zeros_like(best),
        "objective_time_results_per_key": seconds[None],
        "objective_performance_results_per_key": times_us[None],
    }
    described.set_results(arrays)
    return described


def _times(recording: Recording) -> list[float]:
    """The recorded times, NaN for failures."""
    return [float(time) if np.isfinite(time) else np.nan for time in recording.times_us]


def main() -> None:
    """Print the score of each strategy, over all files and on each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--strategy", action="append", choices=[OURS, *sorted(strategy_map)])
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    strategies: list[str] = arguments.strategy or [OURS, *STRATEGIES]
    spaces: dict[str, SearchspaceStatistics] = {}
    found: dict[str, dict[str, ResultsDescription]] = {}
    with tempfile.TemporaryDirectory() as name:
        for path in arguments.file:
            recording = read_recording(path)
            space = spaces[path.name] = statistics(recording, path.name, Path(name))
            evaluations = min(space.size, 10 + 5 * space.cutoff_point_fevals_time_start_end(START, END)[1] // 4)
            simulation = Simulation(recording)
            found[path.name] = {}
            for strategy in strategies:
                runs = [
                    replay_once(recording, sampler=strategy, seed=seed, evaluations=evaluations).configs
                    if strategy == OURS
                    else simulation.run(strategy, seed, evaluations).configs
                    for seed in range(arguments.seeds)
                ]
                found[path.name][strategy] = results(recording, space, strategy, runs)
        np.random.seed(0)  # the package draws bootstrap samples
        named = [{"name": strategy, "display_name": strategy} for strategy in strategies]
        grid = {"experimental_groups_defaults": {"gpus": [GPU], "applications_names": list(spaces)}}
        curves = get_aggregation_data(Path(name), grid, {GPU: spaces}, named, {GPU: found}, END, START)
        per_file = [get_strategies_aggregated_performance([space], 0.95)[0] for space in curves.values()]
    for place, strategy in enumerate(strategies):
        scores = [float(np.mean(curve[place])) for curve in per_file]
        each = "  ".join(f"{file} {score:.3f}" for file, score in zip(spaces, scores, strict=True))
        print(f"{strategy:24} {np.mean(scores):6.3f}   {each}")


if __name__ == "__main__":
    main()
