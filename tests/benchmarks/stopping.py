"""How much `min_gain` saves and loses: searches of recorded spaces, stopped by their expected gain.

    python -m tests.benchmarks.stopping tests/data/recorded-spaces/convolution{-RTX_3090,_milo-A6000}.json.gz \
        tests/data/databases/report-layers.db

Evaluates one config at a time. Prints, for each fraction, after how many evaluations the runs stop (after all of them
if they never stop), and how much slower their best is than the best of all evaluations.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np

from autotune.search.search import Search
from autotune.search.threads import single_threaded
from tests.recorded_spaces import Recorded, read_recordings

FRACTIONS = (0.05, 0.02, 0.01, 0.005)
LEAST = 100  # least configs of a space: with fewer there is nothing to save


@dataclass(frozen=True, slots=True)
class Watched:
    """A complete search: the expected gain before each evaluation, and the best time after it."""

    gains: Sequence[float | None]
    best_us: Sequence[float]

    def ended(self, fraction: float) -> int:
        """Evaluations until the expected gain is below the fraction."""
        ends = (count for count, gain in enumerate(self.gains) if gain is not None and gain < fraction)
        return next(ends, len(self.gains))

    def lost(self, fraction: float) -> float:
        """How much slower the best is at that point than after all evaluations, as a fraction."""
        return self.best_us[self.ended(fraction) - 1] / self.best_us[-1] - 1


@single_threaded()
def watched(recorded: Recorded, *, seed: int, evaluations: int) -> Watched:
    """Search a recording to its end."""
    search = Search(recorded.spaces, sampler="default", seed=seed, budget=0, history=(), watch=True)
    gains: list[float | None] = []
    best_us = [float("inf")]
    for number in range(evaluations):
        gain, config = search.expected_gain, search.ask(number)
        if config is None:
            break
        trial = recorded.trial(number, config)
        search.tell(trial)
        gains.append(gain)
        best_us.append(min(best_us[-1], trial.median_us or float("inf")))
    return Watched(gains, best_us[1:])


def main() -> None:
    """Print a line for each fraction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--evaluations", type=int, default=250)
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    runs = []
    for recorded in (recorded for file in arguments.files for recorded in read_recordings(file)):
        if sum(len(space.rows) for space in recorded.spaces) < LEAST:
            continue
        of_file = [watched(recorded, seed=seed, evaluations=arguments.evaluations) for seed in range(arguments.seeds)]
        runs += of_file
        ends = "; ".join(
            f"{fraction:.1%} {[(run.ended(fraction), round(run.lost(fraction), 3)) for run in of_file]}"
            for fraction in FRACTIONS
        )
        print(f"{recorded.name}: {ends}", flush=True)
    for fraction in FRACTIONS:
        lost = [run.lost(fraction) for run in runs]
        print(
            f"below {fraction:.1%}: {median(run.ended(fraction) for run in runs):.0f} evaluations (median); "
            f"lost {median(lost):.1%} (median), {np.quantile(lost, 0.9):.1%} (90th percentile); "
            f"less than stated in {mean(part < fraction for part in lost):.0%} of {len(runs)} runs"
        )


if __name__ == "__main__":
    main()
