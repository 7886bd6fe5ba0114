"""Test sizes that no file lists: run-time sizes in a fixed order, large or random sizes, and whole tiles plus 1.

Otherwise, a kernel that is wrong only at one remainder, or only above some size, could pass with the numbers of any
check.toml.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from autotune.checking.problems import with_runtimes
from autotune.errors import AutotuneError, StudyError
from autotune.family.render import launches
from autotune.family.space import BoundTemplate
from autotune.operation.operation import Operation
from autotune.problem import Problem, make_problem, valid_problems
from autotune.trial import Config, Value

_FIRST_RUNTIMES = (64, 7, 33, 16, 100, 5, 31, 4, 128, 15, 8, 65, 6, 17, 127, 32, 63, 48, 256, 10, 129, 12, 96, 24, 40)
_UP_TO = 256
_RUNTIMES = (*_FIRST_RUNTIMES, *sorted({*range(11, _UP_TO + 1)} - {*_FIRST_RUNTIMES}))
"""Run-time sizes in order of use: powers of two, primes and their neighbours, then all others up to 256."""
_EACH = 24  # maximum number of these sizes at which a case is run
_EACH_FLOPS, _EACH_ELEMENTS = 4_000_000, 1 << 18  # limits for all these runs of a case together
_APART = 2  # distance in that order between two run-time sizes that change at once
_ALONE, _LEAST_ALONE = (
    4,
    4,
)  # maximum number of sizes with a single work item in the last block, and the smallest such size
_RANDOM = 2  # additional random sizes, which may be larger than all listed sizes
_RANDOM_FLOPS, _RANDOM_ELEMENTS = 2_000_000, 1 << 17  # limits for the largest random size
_QUICK_FLOPS, _QUICK_ELEMENTS = 8_000_000, 1 << 20  # limits for a problem that a CPU verifies quickly
_LARGE_FLOPS, _LARGE_ELEMENTS = 1 << 22, 4 << 20  # limits for a problem with a large size
_WIDE = (66037, 66040, 66048)  # beyond 16 bits: a prime, a multiple of 8 and a multiple of 512
_LARGE = (8209, 8200, 8256, 5001)  # beyond 8192: a prime, a multiple of 8 and of 64; beyond 5000: an odd number
_MODULUS, _VECTOR = 32, 8  # sizes get all remainders modulo 32 (a warp or a tile) and modulo 8 (a vector)
_WIDER = 8  # sizes go up to this many times 32, where a rounded reciprocal no longer divides exactly
_TRIES = 12  # maximum number of problems to try until the family supports one
_VECTORS = (1, 2, 4, 8)  # elements beyond whole tiles: 1, or the smallest number that a kernel with vectors supports
_MOST_EXTENT, _MOST_TILES = 1024, 2  # maximum extent of a tile, and maximum number of whole tiles along an axis
_LATER = 8  # elements after whole tiles, by which even a kernel that rounds down has another block or derived value
_TILES = 24  # maximum number of sizes to try until one begins a new tile


def quick(problem: Problem) -> bool:
    """Return whether a CPU can verify a kernel on the problem quickly."""
    return _within(problem, _QUICK_FLOPS, _QUICK_ELEMENTS)


class RuntimeSizes:
    """Run-time sizes that no file lists. Sizes that ran least often come first."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs: Counter[int] = Counter()

    def of(
        self, bound: BoundTemplate, config: Config, number: int, run: Collection[Problem], most: Sequence[int] | None
    ) -> Iterator[BoundTemplate]:
        """Yield a problem at other run-time sizes: up to 256 in the fixed order, and random ones.

        At some sizes, the last block has a single work item. The sizes change one at a time and all at once. Problems
        that are in `run`, take long or exceed `most` are left out.
        """
        problem = bound.problem
        times = min(_EACH_FLOPS / max(1, problem.flops), _EACH_ELEMENTS / _elements(problem))
        largest = times * max(problem.runtime_sizes)
        order = sorted((size for size in _RUNTIMES if size <= largest), key=lambda size: self._runs[size])[:_EACH]
        several = order[: _APART * len(problem.runtime_sizes) : _APART]
        random = np.random.default_rng((self._seed, number))
        together = [several, several[::-1]] if several else []
        together += [_random(problem, random) for _ in range(_RANDOM)]
        together += [[size] for size in _alone(problem, config, random)]
        all_at_once = valid_problems(partial(problem.with_runtime, *sizes) for sizes in together)
        one_by_one = with_runtimes(problem, order[: _EACH // len(problem.runtime_sizes)])
        flops = elements = 0
        for other in dict.fromkeys((*all_at_once, *one_by_one)):
            left = _EACH_FLOPS - flops, _EACH_ELEMENTS - elements
            if other not in run and within(other, most) and _within(other, *left):
                flops, elements = flops + other.flops, elements + _elements(other)
                yield BoundTemplate(bound.template, other, bound.device)

    def count(self, problem: Problem) -> None:
        """Count a run, so that other sizes come first from now on."""
        self._runs.update(problem.runtime_sizes)


def _alone(problem: Problem, config: Config, random: np.random.Generator) -> list[int]:
    """Return sizes at which the work items of all units exceed whole blocks by one.

    A work item has one output, or as many as the value of a parameter. A block has as many work items as the value of a
    parameter, or the product of two.
    """
    outputs = [output.elements // problem.runtime_size for output in problem.outputs]
    items = {each // value for each in outputs for value in (1, *_whole(config)) if each % value == 0}
    found = set()
    for item, block in itertools.product(items, _products(config)):
        with suppress(ValueError):  # no multiple of the items exceeds whole blocks by one
            found.add(pow(item, -1, block))
    sizes = random.permutation(sorted(size for size in found if _LEAST_ALONE <= size <= _UP_TO))
    return list(map(int, sizes[:_ALONE]))


def _whole(config: Config) -> list[int]:
    return [value for _, value in config.pairs if isinstance(value, int) and value > 1]


def _products(config: Config) -> list[int]:
    """Return the parameters of a config, and the products of two, that may be extents of a block or tile."""
    values = _whole(config)
    products = {one * other for one in (1, *values) for other in values}
    return sorted(extent for extent in products if extent <= _MOST_EXTENT)


def within(problem: Problem, most: Sequence[int] | None) -> bool:
    """Return whether no run-time size exceeds its limit in `most` (None: there are no limits)."""
    return most is None or all(size <= limit for size, limit in zip(problem.runtime_sizes, most, strict=True))


def _random(problem: Problem, random: np.random.Generator) -> list[int]:
    """Return random run-time sizes of any magnitude, up to the largest that a CPU can verify quickly."""
    times = min(_RANDOM_FLOPS / max(1, problem.flops), _RANDOM_ELEMENTS / _elements(problem))
    sizes = problem.runtime_sizes
    share = 1 / len(sizes)  # each size's share of the logarithm of the growth in FLOPs
    return [int(_UP_TO**share * max(1.0, size * times**share / _UP_TO**share) ** random.random()) for size in sizes]


class OtherProblems:
    """Variants of the cases' problems: other remainders, one element beyond whole tiles, or one large size.

    `small` are the check's own problems. The cheapest of them get a large size, because only many columns give work to
    each warp of a large block. Problems with few sizes of 1 come first, because in an array with one row, all terms of
    a sum are equal.
    """

    def __init__(self, declared: Operation, small: Sequence[BoundTemplate], seed: int) -> None:
        self._declared = declared
        cheap = sorted(small, key=lambda bound: bound.problem.flops)[: 2 * _TRIES]
        self._small = sorted(cheap, key=lambda bound: _ones(bound.problem))
        self._rng = np.random.default_rng(seed)
        each = dict.fromkeys(axis for bound in self._small for axis in axes(bound.problem))
        self._large = [(axis, values) for values in (_LARGE, _WIDE) for axis in each]
        """sizes to enlarge in turn, each with large values; the first value that the family supports is used"""
        self._remainders: dict[str, list[int]] = {}
        """remainders modulo 32 that no problem has had yet, by size; remainders that the family refused come last"""
        self._count = 0

    def of(self, bound: BoundTemplate, config: Config) -> tuple[BoundTemplate, Config] | None:
        """Return a case's next variant, or None if the family supports none."""
        self._count += 1
        every = 2 if self._count <= 2 * len(self._large) else 4
        found = self._with_large_size(config) if self._count % every == 1 else None
        if found is None and self._count % 4 == 0:
            found = self._beyond_tiles(bound, config)
        return found or self._with_remainders(bound, config)

    def _beyond_tiles(self, bound: BoundTemplate, config: Config) -> tuple[BoundTemplate, Config] | None:
        """Return the problem with a size of whole tiles plus 1, if a few elements later another block or a different
        derived value is needed (a kernel that rounds down has it too late).

        An extent is a parameter, or the product of two or three, such as a tile in each of a row's parts.
        """
        extents = {each * value for each in _products(config) for value in (1, *_whole(config))}
        tiles = sorted(extent for extent in extents if extent <= _MOST_EXTENT)
        places = self._rng.permutation(list(itertools.product(axes(bound.problem), tiles)))
        for name, extent in places[:_TILES]:
            whole = int(extent) * int(self._rng.integers(1, _MOST_TILES + 1))
            for more in _VECTORS:
                sizes = [{str(name): whole + beyond} for beyond in (0, more, _LATER, _LATER + more)]
                found = self._supported(bound, config, sizes[1], _QUICK_FLOPS, _QUICK_ELEMENTS)
                if found:
                    full, _, late, after = (_geometry(bound, config, each) for each in sizes)
                    if any(one != other == third for one, other, third in zip(full, late, after, strict=False)):
                        return found
                    break
        return None

    def _with_large_size(self, config: Config) -> tuple[BoundTemplate, Config] | None:
        while self._large:
            name, values = self._large.pop(0)
            for small, value in itertools.product(self._small, values):
                if name in axes(small.problem):
                    found = self._supported(small, config, {name: value}, _LARGE_FLOPS, _LARGE_ELEMENTS)
                    if found:
                        self._large.append((name, values))
                        return found
        return None

    def _with_remainders(self, bound: BoundTemplate, config: Config) -> tuple[BoundTemplate, Config] | None:
        """Set each size in turn to the first new remainder that the family supports together with the earlier sizes.

        A size gets a random multiple of 32, or stays near its own value if the problem would take long.
        """
        found: tuple[BoundTemplate, Config] | None = None
        sizes: dict[str, int] = {}
        for name in self._rng.permutation(axes(bound.problem)).tolist():
            left = self._remainders.get(name) or self._in_random_order()
            own, wider = int(bound.problem.values[name]) // _MODULUS, int(self._rng.integers(_WIDER))
            for remainder in left[:_TRIES]:
                left.remove(remainder)
                for times, *limits in (wider, _EACH_FLOPS, _EACH_ELEMENTS), (own, _QUICK_FLOPS, _QUICK_ELEMENTS):
                    size = (times * _MODULUS + remainder) or _MODULUS
                    other = self._supported(bound, config, {**sizes, name: size}, *limits)
                    if other:
                        break
                if other:
                    found, sizes[name] = other, size
                    break
                left.append(remainder)
            self._remainders[name] = left
        return found

    def _in_random_order(self) -> list[int]:
        """Return all remainders modulo 32. The first 8 differ modulo 8, and the first 16 differ modulo 16."""
        offsets = self._rng.integers(_MODULUS // _VECTOR, size=_VECTOR)
        return [
            int(low + _VECTOR * (offsets[low] ^ turn))
            for turn in range(_MODULUS // _VECTOR)
            for low in self._rng.permutation(_VECTOR)
        ]

    def _supported(
        self, bound: BoundTemplate, config: Config, sizes: dict[str, int], flops: int, elements: int
    ) -> tuple[BoundTemplate, Config] | None:
        """Return the problem with these sizes and the config, or None if the family doesn't support both.

        No other config is tried, because finding a feasible one may take long.
        """
        with suppress(StudyError):
            problem = make_problem(self._declared, {**bound.problem.values, **sizes})
            other = BoundTemplate(bound.template, problem, bound.device)
            if not other.supported or not _within(problem, flops, elements):
                return None
            return (other, config) if other.allows(config) else None
        return None


def _geometry(bound: BoundTemplate, config: Config, sizes: Mapping[str, int]) -> tuple[Value, ...]:
    """Return a config's derived values and grids on the problem with other sizes, or nothing if the problem is
    invalid.
    """
    with suppress(AutotuneError):
        problem = make_problem(bound.problem.operation, {**bound.problem.values, **sizes})
        other = BoundTemplate(bound.template, problem, bound.device)
        names = other.names(config)
        grids = (stage.grid for stage in launches(other, other.template.stages, names))
        return (*names.values(), *itertools.chain.from_iterable(grids))
    return ()


def _ones(problem: Problem) -> int:
    return sum(problem.values[axis] == 1 for axis in axes(problem))


def axes(problem: Problem) -> tuple[str, ...]:
    """Return the sizes in the arrays' shapes, except for run-time sizes."""
    sizes = {size.name for size in problem.operation.sizes}.difference(problem.operation.runtime)
    words = re.findall(r"[A-Za-z_]\w*", " ".join(axis for array in problem.arrays for axis in array.axes))
    return tuple(dict.fromkeys(word for word in words if word in sizes))


def _within(problem: Problem, flops: int, elements: int) -> bool:
    return problem.flops <= flops and _elements(problem) <= elements


def _elements(problem: Problem) -> int:
    return sum(array.elements for array in problem.arrays)
