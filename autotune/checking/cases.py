"""A check's cases, which are a family's configs on problems. The next case is always the one that adds the most pairs
of values.

The problem's features and the config's parameters are factors of a single covering array, so a check that ends early
has covered as many pairs as possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from autotune.checking.other_sizes import quick, within
from autotune.checking.pairwise import Covering, Rows
from autotune.checking.problem_features import problem_features
from autotune.checking.problems import Derivation, derive, with_runtimes
from autotune.devices.device import DeviceInfo
from autotune.errors import AutotuneError, TemplateError
from autotune.family.feasible import Tree
from autotune.family.render import launches
from autotune.family.source import KernelSource, Stage
from autotune.family.space import MAX_ROWS, MAX_VISITS, BoundTemplate, SearchSpace, device_names, narrow, refusal
from autotune.family.template import KernelTemplate, Param
from autotune.problem import Layer, Problem, valid_problems
from autotune.trial import Config, Value

_MOST_ROWS = 5_000  # maximum number of configs in an enumerated space
_ENUMERATED = 2  # number of larger spaces to enumerate nevertheless
_SLICES, _SLICE_VALUES, _SLICE_ROWS = 3, 2, 1000  # subspaces of other spaces, values per parameter, configs of each
_DRAWN = 200  # random configs of each space for the greedy choice, in addition to configs that have a new pair
_LEAST_HOST_IMAGES, _MOST_HOST_FLOPS = 3, 50_000_000  # limits for a study's layer on a CPU
_SEVERAL = 3  # blocks on an axis of the grid: the first, the last and one between them
_MANY = (144, 16)  # values of a run-time size: a multiple of 16 above 127, or 16 if that takes too long


@dataclass(frozen=True, slots=True)
class Factor:
    """A property that varies between cases: the layer, a feature of the problem or a parameter."""

    name: str
    values: tuple[str, ...]

    def said(self, value: int) -> str:
        """Return the text for a value, such as `tile_m=64`, from the value's index."""
        return f"{self.name}={self.values[value]}"


@dataclass(frozen=True)  # without slots, so that properties can be computed when the first case starts
class Subject:
    """A problem that a family supports, with values for all factors that aren't parameters."""

    bound: BoundTemplate
    factors: tuple[int, ...]
    sizes: frozenset[int]
    """further values of each run-time size"""
    most: tuple[int, ...] | None
    """the largest run-time sizes for running a user's layer; None: the problem is not a user's layer"""

    @cached_property
    def others(self) -> tuple[BoundTemplate, ...]:
        """The same problem at other run-time sizes, at which the compiled kernel runs as well."""
        problem = self.bound.problem
        few = (each for each in with_runtimes(problem, sorted(self.sizes)) if within(each, self.most))
        many = filter(quick, with_runtimes(problem, (size for size in _MANY if size > self._largest)))
        found = dict.fromkeys((*few, *itertools.islice(many, len(problem.runtime_sizes))))
        return self._at(each for each in found if each != problem)

    @cached_property
    def larger(self) -> tuple[BoundTemplate, ...]:
        """The same problem at increasing run-time sizes, to find one at which a config has several blocks."""
        problem, sizes = self.bound.problem, ((self._largest << power) + 1 for power in range(20))
        return self._at(filter(quick, valid_problems(partial(problem.with_each_runtime, size) for size in sizes)))

    @property
    def _largest(self) -> int:
        allowed_sizes = (size for size in self.sizes if self.most is None or size <= max(self.most))
        return max((*self.bound.problem.runtime_sizes, *allowed_sizes))

    def _at(self, problems: Iterable[Problem]) -> tuple[BoundTemplate, ...]:
        return tuple(BoundTemplate(self.bound.template, each, self.bound.device) for each in problems)

    def with_several_blocks(self, config: Config, run: Sequence[KernelSource]) -> BoundTemplate | None:
        """Return the smallest of the larger sizes at which each axis of the grid has several blocks.

        If an axis never does, it must have as many as it can. Returns None if the sources in `run` already have as many
        blocks, or if no size has enough.
        """
        grids = {}
        for bound in self.larger:
            with suppress(AutotuneError):
                grids[bound] = _grids(launches(bound, bound.template.stages, bound.names(config)))
        before = [max(extents) for extents in zip(*(_grids(source.stages) for source in run), strict=False)]
        most = [max(extents) for extents in zip(*grids.values(), strict=False)]
        wanted = [min(_SEVERAL, extent) for extent in most]
        if all(extent <= had for extent, had in zip(wanted, before, strict=False)):
            return None
        enough = (
            bound
            for bound, extents in grids.items()
            if all(extent >= least for extent, least in zip(extents, wanted, strict=False))
        )
        return next(enough, None)


@dataclass(frozen=True, slots=True)
class Case:
    """One config on one problem."""

    subject: Subject
    config: Config
    factors: npt.NDArray[np.int16]
    number: int
    """number of the case in the check, from 0"""


class CasePlan:
    """The cases in a check of one family, and the pairs of values that they cover.

    `layers` are layers of the user's that replace the derived problems. `narrowed` restricts the values of parameters.
    Raises TemplateError if there is nothing to run.
    """

    def __init__(
        self,
        template: KernelTemplate,
        device: DeviceInfo,
        *,
        layers: Sequence[Layer] = (),
        narrowed: Mapping[str, Sequence[Value]] | None = None,
        seed: int = 0,
    ) -> None:
        self.template, self.device, self.seed = template, device, seed
        features = problem_features(template.operation).values
        self.factors = (
            Factor("layer", tuple(layer.name for layer in layers)),
            *(Factor(name, values) for name, values in features),
            *(Factor(param.name, tuple(map(str, param.values))) for param in template.params),
        )
        self.features = range(1, 1 + len(features))
        self.params = range(1 + len(features), len(self.factors))
        self.problems = Covering([len(values) for _, values in features])
        """pairs of features of the problems, independent of configs"""
        self.covering = Covering([len(factor.values) for factor in self.factors])
        for condition in template.arch:
            if not condition.holds.bind(device_names(device)).integer({}):
                raise TemplateError(f"{template.path}: arch: {device.name} does not meet: {condition.reason}")
        self.derivation = derive(template, device, self.problems, seed) if not layers else Derivation((), ())
        self.left_out: list[tuple[str, str]] = []
        """the user's layers that the family does not support, or not at their full size, with the reasons"""
        self.subjects = [self._subject(derived.bound, (-1, *derived.features)) for derived in self.derivation.problems]
        self.subjects += self._own(layers)
        if not self.subjects:
            raise TemplateError(self._nothing())
        self._enumerated = 0
        self.sampled = False
        """whether some spaces were too large to be enumerated"""
        rng = np.random.default_rng(seed)
        self._pools = [self._pool(subject, narrowed or {}, rng) for subject in self.subjects]

    def _own(self, layers: Sequence[Layer]) -> Iterator[Subject]:
        none = [-1] * len(problem_features(self.template.operation).values)
        for number, layer in enumerate(layers):
            problem = layer.problem
            if self.device.can.cpu:
                most = max(_LEAST_HOST_IMAGES, _MOST_HOST_FLOPS * problem.runtime_size // problem.flops)
                runtime, own = problem.operation.leading, problem.runtime_size
                problem = next(valid_problems([partial(problem.with_runtime, min(own, most))]), problem)
                if problem.runtime_size < own:
                    why = f"would take too long on a CPU; it ran at {runtime} = {problem.runtime_size} and below"
                    self.left_out.append((f"{layer.name} at its {runtime} = {own}", why))
            bound = BoundTemplate(self.template, problem, self.device)
            if not bound.supported:
                self.left_out.append((layer.name, f"the family requires: {bound.unmet}"))
            elif SearchSpace(bound, most_rows=0, sampled_rows=1).default is None:
                self.left_out.append((layer.name, f"no config is feasible: {refusal(bound)}"))
            else:
                yield self._subject(bound, (number, *none))

    def _subject(self, bound: BoundTemplate, factors: tuple[int, ...]) -> Subject:
        """Make a subject that also runs at the run-time sizes of check.toml and at 1."""
        sizes = frozenset((1, *problem_features(self.template.operation).runtime))
        most = bound.problem.runtime_sizes if factors[0] >= 0 else None  # a layer is not run at larger sizes
        return Subject(bound, factors, sizes, most)

    def _nothing(self) -> str:
        """Return a message that explains why there is no case."""
        if self.left_out:
            return f"{self.template.path}: supports no layer of the study: {'; '.join(map(': '.join, self.left_out))}"
        if self.derivation.without_config:
            problem, reason = self.derivation.without_config[0]
            return (
                f"{self.template.path}: no config is feasible on any problem; "
                f"the first values of all parameters are rejected on {problem}: {reason}"
            )
        return (
            f"{self.template.path}: supports: holds for none of the problems that a check derives; "
            f"give layers that it supports with --study FILE"
        )

    def _pool(self, subject: Subject, narrowed: Mapping[str, Sequence[Value]], rng: np.random.Generator) -> Rows:
        """Return cases for one problem: random ones, and one for every pair of values that no earlier problem had."""
        params = self._feasible(subject.bound, narrowed, rng)
        rows = np.concatenate([np.tile(np.array(subject.factors, np.int16), (len(params), 1)), params], axis=1)
        drawn = rng.permutation(len(rows))[:_DRAWN]
        return rows[np.unique(np.concatenate([self.covering.witnesses(rows), drawn, [0][: len(rows)]]).astype(np.intp))]

    def _feasible(
        self, bound: BoundTemplate, narrowed: Mapping[str, Sequence[Value]], rng: np.random.Generator
    ) -> Rows:
        """Return all configs, or some of a large space's, as value indices of the header's parameters.

        The first large spaces are enumerated up to MAX_ROWS, because most spaces have the same pairs. In other large
        spaces, subspaces with two values for each parameter are enumerated, because random configs take far longer to
        find.
        """
        params = narrow(self.template, narrowed)
        rows, complete = _rows(bound, params, _MOST_ROWS)
        if not complete and self._enumerated < _ENUMERATED:
            self._enumerated += 1
            rows, complete = _rows(bound, params, MAX_ROWS)
        if complete:
            return rows
        self.sampled = True
        parts = [rows]
        for _ in range(_SLICES):
            places = [sorted(rng.permutation(len(param.values))[:_SLICE_VALUES]) for param in params]
            some = [
                Param(param.name, tuple(param.values[at] for at in own), param.doc)
                for param, own in zip(params, places, strict=True)
            ]
            parts.append(_rows(bound, some, _SLICE_ROWS)[0])
        return np.concatenate(parts)  # a row may occur twice; the second one adds no pair

    def cases(self) -> Iterator[Case]:
        """Yield every case that adds a pair, beginning with the default config on the first problem."""
        rows = np.concatenate(self._pools)
        of = np.repeat(np.arange(len(self._pools)), [len(pool) for pool in self._pools])
        for number, at in enumerate(self.covering.greedy(rows)):
            self.covering.take(rows[at])
            yield Case(self.subjects[of[at]], self._config(rows[at]), rows[at], number)

    def some(self, most: int) -> Iterator[tuple[BoundTemplate, Config]]:
        """Yield about `most` problems and configs, equally many for each problem."""
        for subject, pool in zip(self.subjects, self._pools, strict=True):
            for row in pool[:: max(1, len(pool) * len(self.subjects) // most)]:
                yield subject.bound, self._config(row)

    def _config(self, row: npt.NDArray[np.int16]) -> Config:
        values = [param.values[int(row[place])] for param, place in zip(self.template.params, self.params, strict=True)]
        return Config(
            self.template.name, tuple(zip((param.name for param in self.template.params), values, strict=True))
        )


def _grids(stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return the extents of every axis of the stages' grids."""
    return tuple(extent for stage in stages for extent in stage.grid)


def _rows(bound: BoundTemplate, params: Sequence[Param], most: int) -> tuple[Rows, bool]:
    """Return the first feasible configs with narrowed parameters, and whether these are all of them.

    The configs are value indices into the header's parameters.
    """
    found, complete = Tree(bound.levels, params).feasible(most=most, visits=MAX_VISITS)
    rows = found.copy()
    for column, (own, param) in enumerate(zip(params, bound.template.params, strict=True)):
        rows[:, column] = np.array([param.values.index(value) for value in own.values], np.int16)[found[:, column]]
    return rows, complete
