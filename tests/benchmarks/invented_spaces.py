"""Write recordings of invented kernels, to test the search on spaces that it was not designed on. Run by hand:

    python tests/benchmarks/invented_spaces.py FOLDER
    python -m tests.benchmarks.replay FOLDER/*.json --seeds 10
    python -m tests.benchmarks.kernel_tuner_search FOLDER/*.json --seeds 8

Writes Kernel Tuner cache files. The time of a config is that of the slowest of three stages plus a quarter of their
sum. A stage depends on random products of parameters, as real kernels depend on threads per block or bytes per tile: on
their distance from the best value, on remainders and on ratios. Registers spill beyond a limit, and configs that need
too much of a resource fail.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SPACES: Sequence[tuple[int, int, float, float]] = (
    (6, 600, 0.0, 0.01),
    (6, 2000, 0.3, 0.01),
    (7, 5000, 0.0, 0.005),
    (8, 5000, 0.5, 0.02),
    (9, 10000, 0.2, 0.01),
    (9, 20000, 0.0, 0.01),
    (10, 20000, 0.4, 0.01),
    (10, 50000, 0.0, 0.02),
    (12, 30000, 0.2, 0.01),
    (14, 30000, 0.0, 0.01),
    (8, 8000, 0.6, 0.01),
    (7, 4000, 0.0, 0.05),
    (9, 12000, 0.1, 0.01),
    (11, 40000, 0.3, 0.005),
)
"""The number of parameters, most configs, the share that fails, and the noise (standard deviation of the log time)."""

MOST_LISTED = 1_500_000
"""Largest product of values that is listed completely; DRAWN configs are drawn from a larger one."""
DRAWN = 700_000


class Invented:
    """The configs of one space and the random products of their parameters."""

    def __init__(self, params: int, seed: int) -> None:
        self.rng = np.random.default_rng(1000 + seed)
        kinds = self.rng.choice(["power", "count", "switch", "multiple"], params, p=[0.35, 0.3, 0.2, 0.15])
        self.params = {f"p{i}": self._values(str(kind)) for i, kind in enumerate(kinds)}
        self.sizes = [len(values) for values in self.params.values()]
        if np.prod(np.array(self.sizes, dtype=np.float64)) < MOST_LISTED:
            self.rows = np.array(list(itertools.product(*map(range, self.sizes))))
        else:
            drawn = [self.rng.integers(size, size=DRAWN) for size in self.sizes]
            self.rows = np.unique(np.stack(drawn, axis=1), axis=0)
        self._sized = [i for i, kind in enumerate(kinds) if kind != "switch"]
        self.switches = [i for i, kind in enumerate(kinds) if kind == "switch"]

    def _values(self, kind: str) -> list[int]:
        if kind == "power":
            return [2**exponent for exponent in range(self.rng.integers(0, 3), self.rng.integers(4, 9))]
        if kind == "count":
            return list(range(1, self.rng.integers(3, 9)))
        return [0, 1] if kind == "switch" else [32 * factor for factor in range(1, self.rng.integers(5, 17))]

    def column(self, param: int) -> Floats:
        """A parameter's value in each config."""
        values = np.array(list(self.params.values())[param], dtype=np.float64)
        return np.asarray(values[self.rows[:, param]])

    def two(self) -> tuple[Floats, Floats]:
        """Two parameters with more than two values."""
        one, other = self.rng.choice(self._sized, 2, replace=False)
        return self.column(one), self.column(other)

    def product(self) -> Floats:
        """The log2 of the product of some parameters."""
        chosen = self.rng.choice(self._sized, min(len(self._sized), int(self.rng.integers(2, 5))), replace=False)
        return np.asarray(np.sum([np.log2(self.column(param)) for param in chosen], axis=0))

    def constrain(self, most: int) -> None:
        """Rule out configs by two products and a remainder if enough are left, then draw at most this many."""
        for _ in range(2):
            size = self.product()
            low, high = np.quantile(size, [0.15, 0.75])
            self._keep((size >= low) & (size <= high), 3 * most // 2)
        one, other = self.two()
        self._keep(np.maximum(one, other) % np.minimum(one, other) == 0, most)
        if most < len(self.rows):
            self.rows = self.rows[np.sort(self.rng.choice(len(self.rows), most, replace=False))]

    def _keep(self, allowed: npt.NDArray[np.bool_], at_least: int) -> None:
        if np.count_nonzero(allowed) > at_least:
            self.rows = self.rows[allowed]

    def stage(self) -> Floats:
        """The time of one stage of the kernel; the median is 1."""
        log_time = np.zeros(len(self.rows))
        for _ in range(self.rng.integers(2, 4)):
            size, other, weight = self.product(), self.product(), self.rng.uniform(0.05, 0.3)
            best, total = self.rng.choice(size), self.rng.integers(500, 9000)
            log_time += (
                weight * np.abs(size - best),
                1.5 * weight * np.maximum(0, best - size),
                0.7 * np.log(np.ceil(total / 2**size) * 2**size / total),
                weight * np.abs(size - other - np.median(size - other)),
            )[self.rng.integers(4)]
        for switch in self.switches:
            depends = (self.product() - 3) / 3 if self.rng.random() < 0.5 else np.ones(len(self.rows))
            if self.rng.random() < 0.6:
                log_time += self.rng.normal(0, 0.2) * self.column(switch) * depends
        time = np.exp(log_time)
        return np.asarray(time / np.median(time))

    def times(self, noise: float, failing: float) -> Floats:
        """Milliseconds of each config; infinite if it fails."""
        stages = np.array([self.stage() for _ in range(3)])
        time: Floats = stages.max(axis=0) + 0.25 * stages.sum(axis=0)
        registers = self.product() + 0.3 * self.product()
        time *= np.where(registers > np.quantile(registers, 0.8), 1.6, 1.0)
        for param in self.rng.choice(len(self.sizes), 2, replace=False):
            time *= np.exp(0.08 * self.rng.normal(size=self.sizes[param]))[self.rows[:, param]]
        time *= np.exp(noise * self.rng.normal(size=len(time)))
        need = self.product() + self.product() + 0.3 * self.rng.normal(size=len(time))
        return np.where(need > np.quantile(need, 1 - failing), np.inf, time)

    def document(self, name: str, times: Floats) -> Mapping[str, object]:
        """The space as a Kernel Tuner cache file."""
        cache = {}
        for row, time in zip(self.rows, times, strict=True):
            config = {param: values[i] for (param, values), i in zip(self.params.items(), row, strict=True)}
            outcome = float(time) if np.isfinite(time) else "RuntimeFailedConfig"
            cache[",".join(map(str, config.values()))] = {**config, "time": outcome}
        keys = list(self.params)
        named = {"device_name": "invented", "kernel_name": name, "objective": "time"}
        return {**named, "tune_params_keys": keys, "tune_params": self.params, "cache": cache}


def main() -> None:
    """Write every space and print how hard it is to search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for seed, (params, most, failing, noise) in enumerate(SPACES):
        space, name = Invented(params, seed), f"invented-{seed:02d}"
        space.constrain(most)
        times = space.times(noise, failing)
        (folder / f"{name}.json").write_text(json.dumps(space.document(name, times)))
        correct = times[np.isfinite(times)]
        print(
            f"{name}: {params} parameters, {len(times)} configs, {1 - len(correct) / len(times):.0%} fail, "
            f"median {np.median(correct) / correct.min():.2f} of the best, "
            f"{np.count_nonzero(correct < 1.05 * correct.min())} within 5 %"
        )


if __name__ == "__main__":
    main()
