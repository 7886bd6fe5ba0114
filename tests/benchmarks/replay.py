"""Score the search on recorded results, without a GPU. Run by hand:

    python -m tests.benchmarks.replay tests/data/recorded-spaces/h200/*.gz --seeds 10

FILE is a Kernel Tuner cache file, a T4 result file (both may be gzipped) or a results database, in which each layer on
one device, in one environment and measurement mode, is a recording. The search proposes only configs that the file
lists; a config that failed costs one evaluation. Prints the best time found divided by the recorded optimum, after each
number of evaluations: median and 90th percentile over seeds, and their geometric means over files.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from autotune.cli.tables import show
from autotune.columns import field_cells, key_columns
from autotune.devices.host_machine import usable_cores
from autotune.search.search import Search
from autotune.search.threads import single_threaded
from autotune.study import SAMPLERS
from autotune.trial import Config
from tests.recorded_spaces import Recorded, read_recordings

GEOMEAN = "geomean"
"""The `file` of the rows that average over files."""

WITHIN = 1.05
"""A run counts as close to the optimum below this ratio."""


@dataclass(frozen=True, slots=True)
class Run:
    """One search on one recording: the best ratio to the optimum after each evaluation."""

    file: str
    sampler: str
    seed: int
    configs: tuple[Config, ...]
    best: tuple[float, ...]
    """best found / optimum after each evaluation, infinite before the first correct config"""
    elapsed_s: tuple[float, ...]
    """search time up to each result"""

    def after(self, evaluations: int) -> float:
        """Best found / optimum after this many evaluations; the last value if the search ran out of configs."""
        return self.best[min(evaluations, len(self.best)) - 1] if self.best else math.inf

    def seconds_per_evaluation(self, evaluations: int) -> float:
        """Mean search time over this many first evaluations."""
        done = min(evaluations, len(self.elapsed_s))
        return self.elapsed_s[done - 1] / done if done else 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one sampler on one file with one budget, over all seeds; `file` is `geomean` for the average."""

    file: str
    sampler: str
    evaluations: int
    median: float
    """of best found / optimum"""
    p90: float
    """90th percentile of best found / optimum"""
    within_5_percent: float
    """share of the runs within 5 % of the optimum"""
    seconds_per_evaluation: float
    """of search, averaged over the evaluations of the budget and over all seeds"""


@single_threaded()
def replay_once(
    recorded: Recorded, *, sampler: str, seed: int, evaluations: int, in_flight: int = 1, walked: int = 0
) -> Run:
    """Run one search on a recording; if several evaluations are `in_flight`, the oldest is answered first.

    Spaces of up to `walked` configs are evaluated in order instead of being searched.
    """
    started = time.perf_counter()
    search = Search(recorded.spaces, sampler=sampler, seed=seed, budget=walked, history=())
    configs: list[Config] = []
    best: list[float] = []
    elapsed_s: list[float] = []
    least_us = math.inf
    waiting: list[tuple[int, Config]] = []
    asking = True
    while asking or waiting:
        while asking and len(waiting) < in_flight:
            number = len(configs) + len(waiting)
            config = search.ask(number) if number < evaluations else None
            if config is None:
                asking = False
            else:
                waiting.append((number, config))
        if waiting:
            number, config = waiting.pop(0)
            trial = recorded.trial(number, config)
            search.tell(trial)
            least_us = min(least_us, trial.median_us or math.inf)
            configs.append(config)
            best.append(least_us / recorded.optimum_us)
            elapsed_s.append(time.perf_counter() - started)
    return Run(recorded.name, sampler, seed, tuple(configs), tuple(best), tuple(elapsed_s))


def score(runs: Sequence[Run], budgets: Sequence[int]) -> list[Score]:
    """Score the runs of each file and sampler at each budget, then the geometric mean over files."""
    scores = []
    for sampler in dict.fromkeys(run.sampler for run in runs):
        of_sampler = [run for run in runs if run.sampler == sampler]
        for evaluations in budgets:
            rows = [
                _score([run for run in of_sampler if run.file == file], evaluations)
                for file in dict.fromkeys(run.file for run in of_sampler)
            ]
            scores += [*rows, _mean(rows)]
    return scores


def replay(
    recordings: Sequence[Recorded],
    *,
    samplers: Sequence[str],
    seeds: int,
    budgets: Sequence[int],
    in_flight: int = 1,
    jobs: int = 1,
) -> list[Score]:
    """Run every sampler with seeds 0, 1, ... on every recording, up to the largest budget, and score the runs.

    A recording within the smallest budget is walked in order, since any search has seen all of it by then.
    """
    cases = [(recorded, sampler, seed) for recorded in recordings for sampler in samplers for seed in range(seeds)]
    once = partial(_once, max(budgets), in_flight, min(budgets))
    with ProcessPoolExecutor(jobs) if jobs > 1 else contextlib.nullcontext() as pool:
        return score(list(map(once, cases) if pool is None else pool.map(once, cases)), budgets)


def _once(evaluations: int, in_flight: int, walked: int, case: tuple[Recorded, str, int]) -> Run:
    recorded, sampler, seed = case
    return replay_once(
        recorded, sampler=sampler, seed=seed, evaluations=evaluations, in_flight=in_flight, walked=walked
    )


def _score(runs: Sequence[Run], evaluations: int) -> Score:
    ratios = sorted(run.after(evaluations) for run in runs)
    return Score(
        file=runs[0].file,
        sampler=runs[0].sampler,
        evaluations=evaluations,
        median=_quantile(ratios, 0.5),
        p90=_quantile(ratios, 0.9),
        within_5_percent=float(np.mean(np.array(ratios) <= WITHIN)),
        seconds_per_evaluation=sum(run.seconds_per_evaluation(evaluations) for run in runs) / len(runs),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile by linear interpolation between two neighbours, as in NumPy, but infinite only if a neighbour in use
    is infinite.
    """
    below = math.floor(share * (len(ordered) - 1))
    part = share * (len(ordered) - 1) - below
    return ordered[below] if part < 1e-9 else (1 - part) * ordered[below] + part * ordered[below + 1]


def _mean(rows: Sequence[Score]) -> Score:
    return Score(
        file=GEOMEAN,
        sampler=rows[0].sampler,
        evaluations=rows[0].evaluations,
        median=geometric_mean(row.median for row in rows),
        p90=geometric_mean(row.p90 for row in rows),
        within_5_percent=sum(row.within_5_percent for row in rows) / len(rows),
        seconds_per_evaluation=sum(row.seconds_per_evaluation for row in rows) / len(rows),
    )


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--sampler", dest="samplers", action="append", choices=SAMPLERS, help="may be repeated")
    parser.add_argument("--evaluations", type=int, nargs="+", default=[50, 100, 200], help="default: 50 100 200")
    parser.add_argument("--seeds", type=int, default=20, help="runs for each; their seeds are 0, 1, ...")
    parser.add_argument("--in-flight", type=int, default=1, help="concurrent evaluations; the oldest ends first")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="parallel runs")
    parser.add_argument("--json", dest="style", action="store_const", const="json", help="print an array of objects")
    given = parser.parse_args()
    scores = replay(
        [recording for file in given.files for recording in read_recordings(file)],
        samplers=given.samplers or ["default"],
        seeds=given.seeds,
        budgets=sorted(given.evaluations),
        in_flight=given.in_flight,
        jobs=given.jobs,
    )
    names = [field.name for field in fields(Score)]
    show(map(field_cells, scores), key_columns(*names, digits=5), given.style)


if __name__ == "__main__":
    main()
