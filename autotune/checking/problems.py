"""Derive small problems that a family's `supports` admits, so that together they contain every feature and every pair
of features.

All combinations of the operation's features are formed, except for those that break a rule, take long, or are rejected
by `supports`. From these, problems are chosen until each possible pair of features occurs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from autotune.checking.pairwise import Covering, Rows
from autotune.checking.problem_features import Shapes, problem_features
from autotune.devices.device import DeviceInfo
from autotune.errors import StudyError
from autotune.expressions.expression import Bound, Tree
from autotune.expressions.vectorized import Columns
from autotune.family.space import BoundTemplate, SearchSpace, refusal
from autotune.family.template import KernelTemplate
from autotune.operation.operation import Operation
from autotune.problem import Problem, make_problem, valid_problems
from autotune.trial import Value

_POOL = 4000  # random problems for the greedy choice, in addition to one problem for each pair
_ACTIVATED = 2000  # number of random shapes for trying each activation; shapes don't affect activations
_PLACE = ""  # key of an additional column with row numbers
_Admitted = dict[tuple[Tree, ...], npt.NDArray[np.intp]]
"""The shapes that satisfy `supports`, by the conditions and derived names left after folding in known words."""
_TRIES = 400  # number of problems without a config after which further problems are left out


@dataclass(frozen=True, slots=True)
class Derived:
    """A problem and the feature values that it was derived from."""

    bound: BoundTemplate
    features: tuple[int, ...]
    """indices into the values of `ProblemFeatures.values`"""


@dataclass(frozen=True, slots=True)
class Derivation:
    """A family's derived problems."""

    problems: tuple[Derived, ...]
    without_config: tuple[tuple[str, str], ...]
    """problems that `supports` admits, but that a rule of the operation or the whole space refuses, with the reasons"""


def derive(
    template: KernelTemplate, device: DeviceInfo, covering: Covering, seed: int, *, most: int | None = None
) -> Derivation:
    """Derive problems for which the family has a config, until all pairs of supported features occur or there are
    `most`.

    `covering` records which pairs of feature values are feasible and which are covered. Raises TemplateError if
    `supports` can't be evaluated for a problem.
    """
    declared = template.operation
    features = problem_features(declared)
    shapes = features.shapes()
    words = [dict(zip(features.words, chosen, strict=True)) for chosen in itertools.product(*features.words.values())]
    rng = np.random.default_rng(seed)
    admitted: _Admitted = {}
    served = [_supported(template, shapes, each, rng, admitted) for each in words]
    rows, places = np.concatenate([rows for rows, _ in served]), np.concatenate([places for _, places in served])
    spoken = np.repeat(np.arange(len(words)), [len(rows) for rows, _ in served])
    drawn = rng.permutation(len(rows))[:_POOL]
    pool = np.unique(np.concatenate([covering.witnesses(rows), drawn]))
    problems: list[Derived] = []
    empty: list[tuple[str, str]] = []
    for position in covering.greedy(rows[pool]):
        at = pool[position]
        row = rows[at]
        given = {**_sizes(shapes, int(places[at])), **words[spoken[at]]}
        try:
            problem = _first_problem(declared, given, _rotated(features.runtime, len(problems)))
        except StudyError as error:
            empty.append((" ".join(map(str, given.values())), str(error)))
            continue
        bound = BoundTemplate(template, problem, device)
        if bound.supported and SearchSpace(bound, most_rows=0, sampled_rows=1).default is not None:
            covering.take(row)
            problems.append(Derived(bound, tuple(map(int, row))))
            if len(problems) == most:
                break
        else:
            empty.append((str(problem), refusal(bound)))
            if len(empty) == _TRIES:
                break
    return Derivation(tuple(problems), tuple(empty))


def _rotated(numbers: Sequence[int], by: int) -> tuple[int, ...]:
    """Return the numbers rotated to the left by `by` places."""
    first = by % len(numbers)
    return (*numbers[first:], *numbers[:first])


def with_runtimes(problem: Problem, sizes: Iterable[int]) -> Iterator[Problem]:
    """Yield the problem with one run-time size at a time set to each of `sizes`, unless a rule excludes it."""
    places = range(len(problem.runtime_sizes))
    return valid_problems(partial(problem.with_runtime_at, place, size) for size in sizes for place in places)


def _first_problem(declared: Operation, given: Mapping[str, Value], runtimes: Sequence[int]) -> Problem:
    """Make the problem with the first of some run-time sizes that the rules allow.

    If there are several run-time sizes, each gets a different number. Raises StudyError if the rules allow none of
    them.
    """
    for first in range(len(runtimes)):
        sizes = {name: runtimes[(first + place) % len(runtimes)] for place, name in enumerate(declared.runtime)}
        try:
            return make_problem(declared, {**sizes, **given})
        except StudyError as error:
            refused = error
    raise refused


def _supported(
    template: KernelTemplate,
    shapes: Shapes,
    words: Mapping[str, str],
    rng: np.random.Generator,
    seen: _Admitted,
) -> tuple[Rows, npt.NDArray[np.intp]]:
    """Return the problems with these words that the family may support, and the row numbers of their shapes."""
    declared = template.operation
    features = problem_features(declared)
    known = declared.names_from({**dict.fromkeys(declared.runtime, features.runtime[0]), **words})
    inputs = [array for array in declared.arrays if array.role in ("in", "inout")]
    unread = [array.when.expression for array in inputs if array.name not in template.read]
    derived = {name: bound.expression.folded(known) for name, bound in declared.derived}
    conditions = (
        *(bound.expression for bound in features.rules_of_words),
        *(condition.holds for condition in template.supports),
    )
    asked = (*derived.values(), *(condition.folded(known) for condition in (*conditions, *unread)))
    if asked not in seen:  # most words, such as an activation, do not affect the conditions
        columns = Columns(dict(shapes.sizes), len(shapes.rows))
        for name, bound in declared.derived:
            columns[name] = Bound(bound.expression, derived[name]).column(columns)
        columns[_PLACE] = np.arange(columns.size)
        wanted = [*((condition, True) for condition in conditions), *((condition, False) for condition in unread)]
        for condition, holds in wanted:
            found = np.not_equal(condition.bind(known).column(columns), 0)
            columns = columns.where(found.astype(np.bool_) == holds)
        seen[asked] = columns[_PLACE].astype(np.intp)
    places = seen[asked]
    if any(known[part.name] != part.values[0] for word in declared.words for part in declared.parts_of(word)[1:]):
        places = rng.permutation(places)[:_ACTIVATED]
    codes = [values.index(str(known[name])) for name, values in features.word_values]
    return np.concatenate([np.tile(np.array(codes, np.int16), (len(places), 1)), shapes.rows[places]], axis=1), places


def _sizes(shapes: Shapes, place: int) -> dict[str, int]:
    return {name: int(column[place]) for name, column in shapes.sizes.items()}
