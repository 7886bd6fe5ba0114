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
from typing import Protocol

import numpy as np

from autotune.interchange.recorded_space import Json, Recording
from autotune.search import Search, single_threaded
from autotune.trial import Config, Trial

GEOMEAN = "geomean"
"""The `file` of the rows that average over files."""

WITHIN = 1.05
"""A run counts as close to the optimum below this ratio."""


class Recorded(Protocol):
    """A space for a search without a device: one family's recording, or several families'."""

    @property
    def name(self) -> str: ...
    @property
    def spaces(self) -> tuple[Recording, ...]: ...
    @property
    def optimum_us(self) -> float: ...
    def trial(self, number: int, config: Config, /) -> Trial: ...
    def entry(self, config: Config, /) -> dict[str, Json]: ...


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


def trace(recorded: Recorded, run: Run) -> Iterable[dict[str, Json]]:
    """A record per evaluation, in order: file, sampler, seed, evaluation (from 1), config as the file writes it."""
    for evaluation, config in enumerate(run.configs, start=1):
        yield {
            "file": run.file,
            "sampler": run.sampler,
            "seed": run.seed,
            "evaluation": evaluation,
            **recorded.entry(config),
        }


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
    on_run: Callable[[Recorded, Run], None] | None = None,
) -> list[Score]:
    """Run every sampler with seeds 0, 1, ... on every recording, up to the largest budget, and score the runs.

    A recording within the smallest budget is walked in order, since any search has seen all of it by then.
    `on_run` sees each finished run, always in the order of recordings, samplers and seeds.
    """
    cases = [(recorded, sampler, seed) for recorded in recordings for sampler in samplers for seed in range(seeds)]
    once = partial(_once, max(budgets), in_flight, min(budgets))
    runs: list[Run] = []
    with ProcessPoolExecutor(jobs) if jobs > 1 else contextlib.nullcontext() as pool:
        finished = map(once, cases) if pool is None else pool.map(once, cases)
        for (recorded, _, _), run in zip(cases, finished, strict=True):
            runs.append(run)
            if on_run is not None:
                on_run(recorded, run)
    return score(runs, budgets)


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
    """Between two neighbours by linear interpolation, as numpy's, but infinite only where a neighbour in use is."""
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
