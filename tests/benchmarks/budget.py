"""The time of a network after a common budget: spent on the largest expected saving, or in equal shares.

    python -m tests.benchmarks.budget RECORDING... [--seeds 4] [--networks 60]

Each layer of each recording is searched once per seed, up to the largest share. Networks are drawn from these searches:
half to all of the layers, each 1 to 6 times. Times are relative to the recordings' optima; floors are unknown.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from autotune.tuning.schedule import expected_gain_us
from tests.benchmarks.replay import replay_once
from tests.recorded_spaces import read_recordings

PER_LAYER = (5, 10, 20, 40)
MOST = 160  # evaluations of one layer


@dataclass(frozen=True, slots=True)
class Searched:
    """A layer of a network and the best time after each evaluation of its search."""

    count: int
    best_us: tuple[float, ...]
    optimum_us: float

    def after(self, evaluations: int) -> float:
        """The best time after this many evaluations; infinite before the first correct one."""
        return self.best_us[min(evaluations, len(self.best_us)) - 1] if evaluations else math.inf


def common(layers: Sequence[Searched], budget: int) -> list[int]:
    """Evaluations of each layer: one each, then always the layer with the largest expected saving."""
    done = [1] * len(layers)
    for _ in range(budget - len(layers)):
        times = [layer.after(count) for layer, count in zip(layers, done, strict=True)]
        slowest = max((us for us in times if us < math.inf), default=1.0)
        gains = [
            expected_gain_us(count=layer.count, evaluated=count, best_us=min(us, slowest), floor_us=None)
            if count < len(layer.best_us)
            else -1.0
            for layer, count, us in zip(layers, done, times, strict=True)
        ]
        done[gains.index(max(gains))] += 1
    return done


def over_optimum(layers: Sequence[Searched], done: Sequence[int]) -> float:
    """The network's time divided by the sum of its layers' optima."""
    now_us = sum(layer.count * layer.after(count) for layer, count in zip(layers, done, strict=True))
    return now_us / sum(layer.count * layer.optimum_us for layer in layers)


def main() -> None:
    """Search, draw networks, and print a line for each budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--networks", type=int, default=60)
    given = parser.parse_args()
    recordings = [one for file in given.files for one in read_recordings(file)]
    traces: dict[int, list[tuple[tuple[float, ...], float]]] = {}
    for seed in range(given.seeds):
        for one in recordings:
            run = replay_once(one, sampler="default", seed=seed, evaluations=MOST)
            if len(run.best) >= max(PER_LAYER):
                times = tuple(ratio * one.optimum_us for ratio in run.best)
                traces.setdefault(seed, []).append((times, one.optimum_us))
    rng = random.Random(0)
    networks = []
    for number in range(given.networks):
        found = traces[number % given.seeds]
        drawn = rng.sample(found, rng.randint(len(found) // 2, len(found)))
        networks.append([Searched(rng.randint(1, 6), times, optimum_us) for times, optimum_us in drawn])
    print(
        f"{len(traces[0])} layers, {len(networks)} networks\nevaluations a layer, equal shares, common budget, better"
    )
    for each in PER_LAYER:
        equal = [over_optimum(layers, [each] * len(layers)) for layers in networks]
        shared = [over_optimum(layers, common(layers, each * len(layers))) for layers in networks]
        better = sum(ours < theirs for ours, theirs in zip(shared, equal, strict=True))
        print(f"{each:4d}  {mean(equal):.4f}  {mean(shared):.4f}  {better} of {len(networks)}")


if __name__ == "__main__":
    main()
