"""Read the features of small problems from an operation's `check.toml`, and form all shapes with these features."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

import numpy as np

from autotune.checking.pairwise import Rows
from autotune.errors import TemplateError
from autotune.expressions.expression import Bound, Expression
from autotune.expressions.typed_names import expression_of, no_condition
from autotune.expressions.vectorized import Column, Columns
from autotune.operation.declarations import MAX_SIZE
from autotune.operation.operation import FILE as OPERATION_FILE
from autotune.operation.operation import Operation
from autotune.text_file import read_text
from autotune.toml_table import Table, did_you_mean, read_toml
from autotune.trial import Value

FILE = "check.toml"
_NUMBERS = (8, 1, 2, 5, 33, 128, 1024, 4224)  # values of a size without a check.toml; 8 is the default
_LENGTHS = (8, 1, 2, 33, 1000, 4096, 100_003)  # values of a size if all sizes are run-time sizes
_RUNTIME = (3, 2, 9)
_MOST_FLOPS = 200_000  # maximum FLOPs per unit of the run-time size, if several sizes vary without a check.toml
_MOST_SHAPES = 2_000_000
_KEYS = {"runtime", "words", "rules", "feature"}
_FEATURE_KEYS = {"name", "sizes", "values", "when", "decides"}


@dataclass(frozen=True, slots=True)
class FeatureValue:
    """A value of a feature."""

    name: str
    sizes: tuple[Bound, ...]
    """values of the feature's sizes"""
    when: Bound
    decides: frozenset[str]
    """names of features that have no effect together with this value"""


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a problem, determined by one or several sizes."""

    name: str
    sizes: tuple[str, ...]
    values: tuple[FeatureValue, ...]
    """values of the feature; the first is the value in a plain problem"""

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers, rather than expressions of other sizes."""
        return not any(bound.names for value in self.values for bound in value.sizes)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of problems, without words."""

    rows: Rows
    """value indices [shapes, features]; -1 if the value of another feature makes a feature irrelevant"""
    sizes: Mapping[str, Column]
    """values of the names that expressions use, one for each row"""


@dataclass(frozen=True, slots=True)
class ProblemFeatures:
    """The contents of a check.toml, or default features for an operation without one."""

    operation: Operation
    runtime: tuple[int, ...]
    """values of run-time sizes, which problems use in turn"""
    words: Mapping[str, tuple[str, ...]]
    rules: tuple[Bound, ...]
    small: tuple[Bound, ...]
    """rules that leave out shapes that take long on a CPU, if there is no check.toml"""
    features: tuple[Feature, ...]

    @property
    def word_values(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The name and values of each feature that is a word. Each part of a word that has parts is a feature."""
        declared = self.operation
        parts = ([part.name for part in declared.parts_of(word)] or [word] for word in self.words)
        return tuple((name, declared.enumerations[name]) for name in itertools.chain.from_iterable(parts))

    @property
    def values(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The name and values of each feature, words first. A feature's first value is the one in a plain problem."""
        shapes = ((feature.name, tuple(value.name for value in feature.values)) for feature in self.features)
        return (*self.word_values, *shapes)

    @property
    def _all_rules(self) -> tuple[Bound, ...]:
        return (*(rule.holds for rule in self.operation.rules), *self.rules)

    @property
    def _of_shapes(self) -> frozenset[str]:
        """The names that depend only on the shape: sizes, and values derived from sizes."""
        found = {size for feature in self.features for size in feature.sizes}
        for name, bound in self.operation.derived:
            if bound.names <= found:
                found.add(name)
        return frozenset(found)

    @property
    def rules_of_words(self) -> tuple[Bound, ...]:
        """The rules that involve words, except for those that involve run-time sizes, which each problem checks."""
        return tuple(
            bound
            for bound in self._all_rules
            if not bound.names <= self._of_shapes and not bound.names & self.operation.changing
        )

    def shapes(self) -> Shapes:
        """Return all combinations of feature values that rules allow. Raises TemplateError if there are none."""
        counts = [len(feature.values) for feature in self.features]
        rows = np.indices(counts, dtype=np.int16).reshape(len(counts), math.prod(counts)).T
        sizes = self._sizes(rows)
        columns = Columns(dict(sizes), len(rows))
        for name, bound in self.operation.derived:
            if all(each in columns for each in bound.names):  # other derived values depend on words
                columns[name] = bound.column(columns)
        kept = np.ones(len(rows), np.bool_)
        for bound in self._all_rules:
            if bound.names <= self._of_shapes:
                kept &= bound.column(columns) != 0
        for bound in self.small:
            kept &= bound.column(columns) != 0
        decided = np.zeros(rows.shape, np.bool_)
        names = [feature.name for feature in self.features]
        for feature, codes in zip(self.features, rows.T, strict=True):
            for code, value in enumerate(feature.values):
                places = np.flatnonzero(codes == code)
                kept[places] &= value.when.column(columns.take(places)) != 0
                for other in value.decides:
                    decided[places, names.index(other)] = True
        kept &= ~(decided & (rows > 0)).any(axis=1)
        if not kept.any():
            raise TemplateError(
                f"{self.operation.folder / FILE}: its rules and those of {OPERATION_FILE} refuse each of the "
                f"{len(rows)} problems that the features make"
            )
        found = {name: column[kept] for name, column in sizes.items()}
        return Shapes(np.where(decided, np.int16(-1), rows)[kept], found)

    def _sizes(self, rows: Rows) -> dict[str, Column]:
        """Return every size that features determine, with a value for each row."""
        numbers: dict[str, Column] = {}
        for feature, codes in zip(self.features, rows.T, strict=True):
            if feature.numeric:
                for place, name in enumerate(feature.sizes):
                    given = [value.sizes[place].integer({}) for value in feature.values]
                    numbers[name] = np.array(given, np.int64)[codes]
        sizes = dict(numbers)
        for feature, codes in zip(self.features, rows.T, strict=True):
            if not feature.numeric:
                sizes |= {name: np.zeros(len(rows), np.int64) for name in feature.sizes}
                for code, value in enumerate(feature.values):
                    places = np.flatnonzero(codes == code)
                    columns = Columns(dict(numbers), len(rows)).take(places)
                    for name, bound in zip(feature.sizes, value.sizes, strict=True):
                        np.put(sizes[name], places, bound.column(columns))
        return sizes


@lru_cache
def problem_features(declared: Operation, folder: Path | None = None) -> ProblemFeatures:
    """Return the features declared in a folder, by default the operation's own.

    Without a check.toml, each size is a feature. Raises TemplateError if the file has an error, naming its dotted key,
    or if there is no file and the operation has too many sizes.
    """
    path = (folder or declared.folder) / FILE
    if not path.exists():
        return _undeclared(declared, path)
    table = read_toml(read_text(path, TemplateError), TemplateError, str(path))
    return _Reader(declared, table).read()


def _undeclared(declared: Operation, path: Path) -> ProblemFeatures:
    """Return features for an operation without a check.toml, where each size is a feature.

    A run-time size is a feature only if there are no other sizes. Sizes that may be omitted get few values.
    """
    always = Expression("true", str(path)).bind({})
    features = []
    fixed = tuple(size for size in declared.sizes if size.name not in declared.runtime)
    for size in fixed or declared.sizes[:1]:
        least, optional = size.default if size.default is not None else size.least, size.default is not None
        tried = _NUMBERS if fixed else _LENGTHS
        numbers = sorted({max(least, number) for number in tried}, key=lambda number: (number != 8, number))
        found = sorted({least, least + 1, least + 2, 2 * least}) if optional else numbers
        bounds = {str(number): Expression(str(number), str(path)).bind({}) for number in found}
        values = tuple(FeatureValue(name, (bound,), always, frozenset()) for name, bound in bounds.items())
        features.append(Feature(size.name, (size.name,), values))
    if math.prod(len(feature.values) for feature in features) > _MOST_SHAPES:
        raise TemplateError(f"{path}: missing, and {declared.name} has too many sizes to cross; declare its features")
    return ProblemFeatures(declared, _RUNTIME, declared.words, (), _small(declared, features, path), tuple(features))


def _small(declared: Operation, features: Sequence[Feature], path: Path) -> tuple[Bound, ...]:
    """Return the rule that excludes problems that take long on a CPU.

    There is none if there is only one size, or if the cost depends on more than the shape.
    """
    made = {feature.name for feature in features}
    first = {name: words[0] for name, words in declared.enumerations.items()}
    unit: dict[str, Value] = {**dict.fromkeys(declared.runtime, 1), **first}
    known = {name: value for name, value in declared.names_from(unit).items() if name not in made}
    small = Expression(f"({declared.flops.expression.text}) <= {_MOST_FLOPS}", str(path)).bind(known)
    told = made | known.keys() | {name for name, bound in declared.derived if bound.names <= made}
    return (small,) if len(made) > 1 and small.names <= told else ()


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


class _Reader:
    """Reads a check.toml's tables. Errors give the dotted key."""

    def __init__(self, declared: Operation, table: Table) -> None:
        self.declared = declared
        self.table = table
        self.least = {size.name: size.least for size in declared.sizes if size.name not in declared.runtime}
        self.sizes = self.least.keys()

    def read(self) -> ProblemFeatures:
        table = self.table
        table.allow(_KEYS)
        table.require(("runtime",))
        words = tuple(map(str, table.array("words"))) if "words" in table else tuple(self.declared.words)
        if sorted(words) != sorted(self.declared.words):
            raise table.error("words", f"expected each of {', '.join(self.declared.words)} once")
        runtime = table.array("runtime")
        if not runtime or not all(_is_whole(number) and 0 < number <= MAX_SIZE for number in runtime):
            raise table.error("runtime", f"expected numbers above 0, got {runtime!r}")
        if len(set(runtime)) < len(runtime):
            raise table.error("runtime", f"a number occurs twice in {runtime!r}")
        rules = table.table("rules", "expected a table [rules]")
        features = tuple(self.feature(each) for each in table.tables("feature", "expected [[feature]]", label="name"))
        for name in sorted(self.sizes - {size for feature in features for size in feature.sizes}):
            raise table.error("feature", f"no feature sets the size {name!r}")
        names = {feature.name for feature in features}
        if len(names) < len(features) or names & self.declared.words.keys():
            raise table.error("feature", "two features, or a feature and a word, have the same name")
        for each, feature in zip(table.tables("feature", "", label="name"), features, strict=True):
            for name in sorted(frozenset().union(*(value.decides for value in feature.values)) - names):
                raise each.error("decides", f"no feature {name!r}{did_you_mean(name, names)}")
        return ProblemFeatures(
            operation=self.declared,
            runtime=tuple(int(str(number)) for number in runtime),
            words={name: self.declared.words[name] for name in words},
            rules=tuple(self.rule(rules, why) for why in rules.content),
            small=(),
            features=features,
        )

    def feature(self, table: Table) -> Feature:
        table.allow(_FEATURE_KEYS)
        table.require(("name", "sizes", "values"))
        sizes = tuple(map(str, table.array("sizes")))
        for name in sizes:
            if name not in self.sizes:
                raise table.error("sizes", f"no size {name!r}{did_you_mean(name, self.sizes)}")
        if not table.word("name", ""):
            raise table.error("name", "is empty; it describes the feature")
        values = table.table("values", "expected named values, such as { narrow = [8], wide = [4096] }")
        when, decides = (table.table(key, "expected a table of values") for key in ("when", "decides"))
        for other in (when, decides):
            other.allow(values.content.keys())
        if not values.content:
            raise table.error("values", "expected at least one")
        found = []
        for name in values.content:
            given = values.array(name)
            if len(given) != len(sizes) or not all(isinstance(one, str) or _is_whole(one) for one in given):
                raise values.error(name, f"expected {len(sizes)} numbers or expressions, one for each size")
            for size, one in zip(sizes, given, strict=True):
                if _is_whole(one) and not self.least[size] <= one <= MAX_SIZE:
                    raise values.error(name, f"{size} = {one}: expected {self.least[size]} to {MAX_SIZE}")
            found.append(
                FeatureValue(
                    name=name,
                    sizes=tuple(self.bound(values, name, str(one)) for one in given),
                    when=self.bound(when, name, when.word(name, "true")),
                    decides=frozenset(map(str, decides.array(name) if name in decides else ())),
                )
            )
        return Feature(table.word("name", ""), sizes, tuple(found))

    def bound(self, table: Table, key: str, text: str) -> Bound:
        """Parse an expression that may use sizes and values derived from sizes."""
        return expression_of(table, key, text, self.sizes | dict(self.declared.derived).keys()).bind({})

    def rule(self, table: Table, key: str) -> Bound:
        """Parse a condition that may use sizes and words."""
        declared = self.declared
        known = declared.names - frozenset(declared.runtime)
        rule = expression_of(table, key, table.word(key, ""), known, declared.enumerations).bind({})
        if wrong := no_condition(rule.expression, declared.numeric_names):
            raise table.error(key, wrong)
        return rule
