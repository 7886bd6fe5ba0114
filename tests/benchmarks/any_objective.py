"""Compare the default sampler with Optuna's on objectives that are not kernels. Run by hand:

    python tests/benchmarks/any_objective.py --seeds 10

Prints for each objective and sampler the distance of the best value from the minimum after some numbers of trials
(median over seeds), and the seconds per trial.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np
import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import Trial

from autotune.search import AutotuneSampler, single_threaded

BUDGETS = (15, 30, 60)
HARTMANN_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
HARTMANN_C = np.array([1, 1.2, 3, 3.2])
"""Hartmann's function of six variables (Dixon & Szegö 1978)."""


def branin(trial: Trial) -> float:
    """Three minima of 0.397887."""
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    bend = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def hartmann(trial: Trial) -> float:
    """Six variables, minimum -3.32237."""
    x = np.array([trial.suggest_float(f"x{place}", 0, 1) for place in range(6)])
    return float(3.32237 - HARTMANN_C @ np.exp(-(HARTMANN_A * (x - HARTMANN_P) ** 2).sum(axis=1)))


def mixed(trial: Trial) -> float:
    """An objective with every kind of parameter; minimum 0."""
    rate = math.log10(trial.suggest_float("rate", 1e-6, 1.0, log=True))
    layers, width = trial.suggest_int("layers", 1, 8), math.log2(trial.suggest_int("width", 16, 1024, log=True))
    drop = trial.suggest_float("drop", 0.0, 0.5, step=0.1)
    kind = trial.suggest_categorical("kind", ["tanh", "relu", "none"])
    batch = math.log2(trial.suggest_categorical("batch", [16, 32, 64, 128]))
    away = abs(rate + 3) + 0.3 * abs(layers - 4) + 0.2 * abs(width - 7)
    return away + drop + (kind != "relu") + abs(batch - 6) / 4


def conditional(trial: Trial) -> float:
    """Three families, each with its own parameters; minimum 0."""
    family = trial.suggest_categorical("family", ["tree", "linear", "net"])
    shared = trial.suggest_float("shared", 0, 1)
    if family == "tree":
        return 2 + abs(trial.suggest_int("depth", 1, 20) - 7) / 5 + shared
    if family == "linear":
        return 1.5 + shared
    rate, decay = trial.suggest_float("rate", 0, 1), trial.suggest_float("decay", 0, 1)
    return 8 * abs(rate - 0.8) + 2 * abs(decay - 0.3) + shared


OBJECTIVES: Mapping[str, Callable[[Trial], float]] = {
    "Branin": branin,
    "Hartmann 6": hartmann,
    "mixed": mixed,
    "conditional": conditional,
}
SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "AutotuneSampler": lambda seed: AutotuneSampler(seed=seed),
    "TPESampler": lambda seed: TPESampler(seed=seed),
    "RandomSampler": lambda seed: RandomSampler(seed=seed),
}


def main() -> None:
    """Run every sampler on every objective."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(f"objective    sampler          {'  '.join(f'{budget:>7}' for budget in BUDGETS)}  ms a trial")
    for name, objective in OBJECTIVES.items():
        for sampler, make in SAMPLERS.items():
            found: list[list[float]] = []
            started = time.process_time()
            for seed in range(seeds):
                study = optuna.create_study(sampler=make(seed))
                with single_threaded():
                    study.optimize(objective, n_trials=max(BUDGETS))
                values = [trial.values[0] for trial in study.trials]
                found.append([min(values[:budget]) for budget in BUDGETS])
            spent_ms = 1e3 * (time.process_time() - started) / (seeds * max(BUDGETS))
            medians = "  ".join(f"{median(column):7.4f}" for column in zip(*found, strict=True))
            print(f"{name:<12} {sampler:<16} {medians}  {spent_ms:.1f}")


if __name__ == "__main__":
    main()
