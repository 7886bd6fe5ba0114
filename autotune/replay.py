"""Search without a device: run samplers on recorded spaces and score how close they come to the optimum."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean

import numpy as np

from autotune.recorded import Recording
from autotune.search import Search
from autotune.trial import Config

GEOMEAN = "geomean"
"""The `file` of the rows that average over files."""

WITHIN = 1.05
"""A run counts as close to the optimum below this ratio."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a replayed search, a line of the trace."""

    file: str
    sampler: str
    seed: int
    evaluation: int
    """from 1"""
    config: Config


@dataclass(frozen=True, slots=True)
class Run:
    """One search on one recording: the best ratio to the optimum after each evaluation."""

    file: str
    sampler: str
    seed: int
    configs: tuple[Config, ...]
    best: tuple[float, ...]
    """best found / optimum after each evaluation, infinite before the first correct config"""
    seconds: float
    """spent in ask and tell"""

    def after(self, evaluations: int) -> float:
        """Best found / optimum after so many evaluations; a search that ran out of configs keeps its last."""
        return self.best[min(evaluations, len(self.best)) - 1] if self.best else math.inf

    def trace(self) -> Iterable[Evaluation]:
        """Every evaluation, in order."""
        for i, config in enumerate(self.configs, start=1):
            yield Evaluation(self.file, self.sampler, self.seed, i, config)


@dataclass(frozen=True, slots=True)
class Score:
    """How one sampler did on one file within one budget, over all seeds; `file` is `geomean` for the average."""

    file: str
    sampler: str
    evaluations: int
    median: float
    """of best found / optimum"""
    p90: float
    """90th percentile of best found / optimum"""
    within_5_percent: float
    """share of the runs that come within 5 % of the optimum"""
    seconds_per_evaluation: float
    """of search, averaged over the whole run"""


def replay_once(recording: Recording, *, sampler: str, seed: int, evaluations: int, in_flight: int = 1) -> Run:
    """Run one search on a recording; with more than one `in_flight` the oldest of them is answered first."""
    started = time.perf_counter()
    search = Search([recording], sampler=sampler, seed=seed, budget=evaluations, history=())
    configs: list[Config] = []
    best: list[float] = []
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
            trial = recording.trial(number, config)
            search.tell(trial)
            least_us = min(least_us, trial.median_us or math.inf)
            configs.append(config)
            best.append(least_us / recording.optimum_us)
    seconds = time.perf_counter() - started
    return Run(recording.name, sampler, seed, tuple(configs), tuple(best), seconds)


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
    recordings: Sequence[Recording],
    *,
    samplers: Sequence[str],
    seeds: int,
    budgets: Sequence[int],
    jobs: int = 1,
    on_run: Callable[[Run], None] | None = None,
) -> list[Score]:
    """Run every sampler with seeds 0, 1, ... on every recording, up to the largest budget, and score the runs.

    `on_run` sees each finished run, always in the order of recordings, samplers and seeds.
    """
    largest = max(budgets)
    cases = [(recording, sampler, seed) for recording in recordings for sampler in samplers for seed in range(seeds)]
    once = partial(_once, largest)
    runs: list[Run] = []
    with ProcessPoolExecutor(jobs) if jobs > 1 else contextlib.nullcontext() as pool:
        for run in map(once, cases) if pool is None else pool.map(once, cases):
            runs.append(run)
            if on_run is not None:
                on_run(run)
    return score(runs, budgets)


def _once(evaluations: int, case: tuple[Recording, str, int]) -> Run:
    recording, sampler, seed = case
    return replay_once(recording, sampler=sampler, seed=seed, evaluations=evaluations)


def _score(runs: Sequence[Run], evaluations: int) -> Score:
    ratios = np.array([run.after(evaluations) for run in runs])
    return Score(
        file=runs[0].file,
        sampler=runs[0].sampler,
        evaluations=evaluations,
        median=float(np.median(ratios)),
        p90=float(np.quantile(ratios, 0.9)) if np.isfinite(ratios).all() else float(np.sort(ratios)[-1]),
        within_5_percent=float(np.mean(ratios <= WITHIN)),
        seconds_per_evaluation=sum(run.seconds for run in runs) / max(1, sum(len(run.configs) for run in runs)),
    )


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
