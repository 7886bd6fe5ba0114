"""Sizes that no file lists: run-time sizes in a fixed order, and problems with large or random sizes.

A kernel that is wrong at one remainder, or beyond some size, passes whatever numbers a check.toml names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from autotune.checking.problems import with_runtimes
from autotune.errors import StudyError
from autotune.family.space import BoundTemplate
from autotune.operation.operation import Operation
from autotune.problem import Problem, make_problem, valid_problems
from autotune.trial import Config

_FIRST_RUNTIMES = (64, 7, 33, 16, 100, 5, 31, 4, 128, 15, 8, 65, 6, 17, 127, 32, 63, 48, 256, 10, 129, 12, 96, 24, 40)
_UP_TO = 64
_RUNTIMES = (*_FIRST_RUNTIMES, *sorted({*range(11, _UP_TO + 1)} - {*_FIRST_RUNTIMES}))
"""Powers of two, primes and their neighbours, the most telling ones first, then all up to 64."""
_EACH, _EACH_SMALL = 2, 4  # of them at which a case is run
_APART = 2  # places in that order between two run-time sizes that change at once
_RANDOM_EVERY = 2  # of so many cases one is run at a random size, too
_QUICK_FLOPS, _QUICK_ELEMENTS = 8_000_000, 1 << 20  # of a problem that a CPU verifies in little time
_SMALL_FLOPS, _SMALL_ELEMENTS = 500_000, 1 << 16  # of one whose verification takes far less time than its compilation
_LARGE_FLOPS, _LARGE_ELEMENTS = 1 << 22, 4 << 20  # of a problem with a large size
_LARGE = (8209, 8200, 8256, 5001)  # beyond 5000 and 8192: a prime, a multiple of 8, of 64, and an odd number
_MODULUS = 32  # whose remainders sizes get: what a vector, a warp or a tile leaves
_TRIES = 12  # problems at most, until the family supports one


def quick(problem: Problem) -> bool:
    """Whether a CPU verifies a kernel in little more time than at the problem's own size."""
    return _within(problem, _QUICK_FLOPS, _QUICK_ELEMENTS)


def runtimes(
    bound: BoundTemplate, number: int, run: Collection[Problem], most: Sequence[int] | None
) -> Iterator[BoundTemplate]:
    """The case's own part of the fixed order for each run-time size and for all at once, and random ones, but for what
    is `run` already, takes long or exceeds `most`.
    """
    each = _EACH_SMALL if _within(bound.problem, _SMALL_FLOPS, _SMALL_ELEMENTS) else _EACH
    order = [_RUNTIMES[(each * number + place) % len(_RUNTIMES)] for place in range(len(_RUNTIMES))]
    several = order[: _APART * len(bound.problem.runtime_sizes) : _APART]
    together = [several, several[::-1]]
    if number % _RANDOM_EVERY:
        together.append(_random(bound.problem, number))
    all_at_once = valid_problems(partial(bound.problem.with_runtime, *sizes) for sizes in together)
    found = dict.fromkeys((*with_runtimes(bound.problem, order[:each]), *all_at_once))
    for problem in filter(quick, found):
        if problem not in run and within(problem, most):
            yield BoundTemplate(bound.template, problem, bound.device)


def within(problem: Problem, most: Sequence[int] | None) -> bool:
    """Whether no run-time size exceeds its limit, if there are any."""
    return most is None or all(size <= limit for size, limit in zip(problem.runtime_sizes, most, strict=True))


def _random(problem: Problem, seed: int) -> list[int]:
    """Run-time sizes of any magnitude up to the largest ones that a CPU verifies in little time."""
    elements = sum(array.elements for array in problem.arrays)
    times = min(_QUICK_FLOPS / max(1, problem.flops), _QUICK_ELEMENTS / elements)
    random, sizes = np.random.default_rng(seed), problem.runtime_sizes
    share = 1 / len(sizes)  # of the FLOPs' growth, in its logarithm
    return [int(_UP_TO**share * max(1.0, size * times**share / _UP_TO**share) ** random.random()) for size in sizes]


class OtherProblems:
    """Variants of the problems of cases: in turn one with a large size, and one with other remainders.

    `small` are the problems of the check, of which the cheapest get a large size: it takes many columns until each
    warp of a large block has some.
    """

    def __init__(self, declared: Operation, small: Sequence[BoundTemplate], seed: int) -> None:
        self._declared = declared
        self._small = sorted(small, key=lambda bound: bound.problem.flops)[:_TRIES]
        self._rng = np.random.default_rng(seed)
        self._large = list(dict.fromkeys(axis for bound in self._small for axis in _axes(bound.problem)))
        """sizes that problems get at a large value, in turn"""
        self._remainders: dict[str, list[int]] = {}
        """of each size those of 32 that no problem had yet"""
        self._count = 0

    def of(self, bound: BoundTemplate, config: Config) -> tuple[BoundTemplate, Config] | None:
        """The next variant of a case; None if the family supports none."""
        self._count += 1
        return (self._count % 2 and self._with_large_size(config)) or self._with_remainders(bound, config)

    def _with_large_size(self, config: Config) -> tuple[BoundTemplate, Config] | None:
        while self._large:
            name = self._large.pop(0)
            for small, value in itertools.product(self._small, _LARGE):
                if name in _axes(small.problem):
                    found = self._supported(small, config, {name: value}, _LARGE_FLOPS, _LARGE_ELEMENTS)
                    if found:
                        self._large.append(name)
                        return found
        return None

    def _with_remainders(self, bound: BoundTemplate, config: Config) -> tuple[BoundTemplate, Config] | None:
        for _ in range(_TRIES):
            chosen = {name: self._remainder(name) for name in _axes(bound.problem) if self._rng.integers(2)}
            sizes = {
                name: (int(bound.problem.values[name]) // _MODULUS * _MODULUS + remainder) or _MODULUS
                for name, remainder in chosen.items()
            }
            found = self._supported(bound, config, sizes, _QUICK_FLOPS, _QUICK_ELEMENTS) if sizes else None
            if found:
                for name, remainder in chosen.items():
                    self._remainders[name].remove(remainder)
                return found
        return None

    def _remainder(self, name: str) -> int:
        if not self._remainders.get(name):
            self._remainders[name] = list(range(_MODULUS))
        return int(self._rng.choice(self._remainders[name]))

    def _supported(
        self, bound: BoundTemplate, config: Config, sizes: dict[str, int], flops: int, elements: int
    ) -> tuple[BoundTemplate, Config] | None:
        """The problem with these sizes, if the family runs it with the config: finding another one may take long."""
        with suppress(StudyError):
            problem = make_problem(self._declared, {**bound.problem.values, **sizes})
            other = BoundTemplate(bound.template, problem, bound.device)
            if not other.supported or not _within(problem, flops, elements):
                return None
            return (other, config) if other.allows(config) else None
        return None


def _axes(problem: Problem) -> tuple[str, ...]:
    """The sizes in the shapes of arrays, but for run-time sizes."""
    sizes = {size.name for size in problem.operation.sizes}.difference(problem.operation.runtime)
    words = re.findall(r"[A-Za-z_]\w*", " ".join(axis for array in problem.arrays for axis in array.axes))
    return tuple(dict.fromkeys(word for word in words if word in sizes))


def _within(problem: Problem, flops: int, elements: int) -> bool:
    return problem.flops <= flops and sum(array.elements for array in problem.arrays) <= elements
