"""What an operation is but for its kernels: its sizes, arrays and cost, as its folder's `operation.toml` declares them.

Everything that loops over the arrays of a problem, or over its sizes, asks here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from autotune.errors import StudyError, TemplateError
from autotune.expressions.expression import Bound, Expression
from autotune.reading import read_text
from autotune.shipped import shipped
from autotune.table import Table, did_you_mean, is_time, read_toml
from autotune.trial import Value

FILE = "operation.toml"
REFERENCE = "reference.cuh"
CONV2D = "conv2d"
"""The only operation for now."""
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
MAX_SIZE = 2**31 - 1  # a size is a 32-bit int in every kernel
Role = Literal["in", "weights", "out"]
ROLES: tuple[Role, ...] = ("in", "weights", "out")
"""in and out: arrays of each launch. weights: what is prepared once and used for many."""
_KEYS = {"runtime", "sizes", "words", "parts", "derived", "rules", "array", "similarity", "cost"}
_SIMILARITY = ("factors", "differences", "kinds")
_ARRAY_KEYS = {"name", "role", "shape", "integers", "when", "windows"}
_WINDOW_KEYS = ("outputs", "taps", "stride", "dilation", "pad")
_IN_MESSAGE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Size:
    """A whole number of a problem."""

    name: str
    doc: str
    default: int | None
    """None: it must be given"""
    least: int


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a word says, a name of its own: an epilogue's activation."""

    name: str
    word: str
    """the enumeration whose words say it"""
    values: tuple[str, ...]
    """the first where a word leaves it out"""
    of: Mapping[str, str]
    """its value by word, in the order of the words"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that a problem must meet."""

    holds: Bound
    message: str
    """what is said where it is not met, with expressions in ${...}"""

    def broken(self, names: Mapping[str, Value]) -> str:
        """What is said of a problem that breaks the rule; empty where it does not."""
        if self.holds.integer(names):
            return ""
        where = self.holds.expression.where
        return _IN_MESSAGE.sub(lambda found: str(Expression(found[1], where).bind({}).value(names)), self.message)


@dataclass(frozen=True, slots=True)
class Apart:
    """A part of the distance between two problems."""

    of: Bound
    weight: float
    factors: bool
    """whether it is for a factor of two, and not for any difference"""

    def apart(self, one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
        """What it adds to the distance of two problems with these names."""
        if self.factors:
            return self.weight * abs(math.log2(self.of.integer(one) / self.of.integer(other)))
        return self.weight if self.of.any(one) != self.of.any(other) else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """Which places on an axis are needed: tap t of output i is at i * stride + t * dilation - pad."""

    outputs: int
    taps: int
    stride: int
    dilation: int
    pad: int


@dataclass(frozen=True, slots=True)
class Array:
    """An array of one problem."""

    name: str
    role: Role
    axes: tuple[str, ...]
    """what each extent is, such as `n` or `c // groups`"""
    shape: tuple[int, ...]
    """as it is stored, the last axis densest"""
    dtype: str
    per_item: bool
    """whether there is one for each unit of the run-time size, as for each image"""
    least: int
    most: int
    """of whole numbers as test data"""
    windows: tuple[Window | None, ...]
    """for each axis; None: the whole axis is needed"""

    @property
    def elements(self) -> int:
        """Elements of the whole array."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole array."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ArrayTemplate:
    """An `[[array]]` of the file, not yet evaluated."""

    name: str
    role: Role
    shapes: Mapping[str, tuple[Bound, ...]]
    """by layout"""
    when: Bound
    least: int
    most: int
    windows: Mapping[str, Mapping[str, Bound]]
    """by axis, what a Window has"""

    def evaluate(self, names: Mapping[str, Value], runtime: str) -> Array:
        """The array of a problem with these names."""
        extents = self.shapes[str(names["layout"])]
        return Array(
            name=self.name,
            role=self.role,
            axes=tuple(extent.expression.text for extent in extents),
            shape=tuple(extent.integer(names) for extent in extents),
            dtype=str(names["dtype"]),
            per_item=any(runtime in extent.names for extent in extents),
            least=self.least,
            most=self.most,
            windows=tuple(self._window(extent.expression.text, names) for extent in extents),
        )

    def _window(self, axis: str, names: Mapping[str, Value]) -> Window | None:
        if axis not in self.windows:
            return None
        return Window(**{key: bound.integer(names) for key, bound in self.windows[axis].items()})


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as its file declares it."""

    name: str
    folder: Path
    """where its file, its reference and its families lie"""
    runtime: str
    """the size that a kernel takes when it is launched"""
    sizes: tuple[Size, ...]
    words: Mapping[str, tuple[str, ...]]
    """what each enumeration may be; the first is the default"""
    parts: tuple[Part, ...]
    derived: tuple[tuple[str, Bound], ...]
    rules: tuple[Rule, ...]
    arrays: tuple[ArrayTemplate, ...]
    similarity: tuple[tuple[Apart, ...], ...]
    """what makes up the distance of two problems, in the order in which it is added up"""
    reduction: Bound
    flops: Bound

    @property
    def names(self) -> frozenset[str]:
        """Every name that expressions about a problem see."""
        return frozenset((*(size.name for size in self.sizes), *self.enumerations, *(name for name, _ in self.derived)))

    @property
    def numbers(self) -> frozenset[str]:
        """Those of them that are numbers, none of which is below 0."""
        return self.names - self.enumerations.keys()

    @property
    def enumerations(self) -> Mapping[str, tuple[str, ...]]:
        """What each word and each part of a word may be."""
        return {**self.words, **{part.name: part.values for part in self.parts}}

    def parts_of(self, word: str) -> tuple[Part, ...]:
        """The parts that the words of an enumeration are made of; none where they are no more than themselves."""
        return tuple(part for part in self.parts if part.word == word)

    def names_of(self, *roles: Role) -> tuple[str, ...]:
        """Names of the arrays of these roles, in the file's order."""
        return tuple(array.name for array in self.arrays if array.role in roles)

    def seed(self, name: str) -> int:
        """Of an array's test data: its place in the file."""
        return [array.name for array in self.arrays].index(name)

    @property
    def output(self) -> ArrayTemplate:
        """The array that a kernel computes."""
        return next(array for array in self.arrays if array.role == "out")

    @property
    def outputs(self) -> str:
        """How many outputs a problem has, as an expression."""
        extents = next(iter(self.output.shapes.values()))
        return " * ".join(extent.expression.text for extent in extents)

    def names_from(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Sizes and words of a problem, the parts of the words, and what is derived from as many sizes as there are."""
        names = {**values, **{part.name: part.of[str(values[part.word])] for part in self.parts}}
        for name, bound in self.derived:
            if bound.names <= names.keys():
                names[name] = bound.value(names)
        return names

    def check(self, values: Mapping[str, Value]) -> None:
        """Raise StudyError where sizes and words make no problem."""
        for size in self.sizes:
            value = values[size.name]
            if isinstance(value, bool) or not isinstance(value, int):
                raise StudyError(f"{size.name} = {value!r}: expected a whole number")
            if not size.least <= value <= MAX_SIZE:
                raise StudyError(f"{size.name} = {value}: expected {size.least} to {MAX_SIZE}")
        for name, allowed in self.words.items():
            if values[name] not in allowed:
                near = did_you_mean(str(values[name]), allowed)
                raise StudyError(f"{name} = {values[name]!r}: expected one of {', '.join(allowed)}{near}")
        names = self.names_from(values)
        for rule in self.rules:
            if why := rule.broken(names):
                raise StudyError(why)

    def arrays_of(self, names: Mapping[str, Value]) -> tuple[Array, ...]:
        """The arrays of a problem with these names, in the file's order; those that it has none of are left out."""
        return tuple(array.evaluate(names, self.runtime) for array in self.arrays if array.when.integer(names))


@lru_cache
def operation(name: str = CONV2D) -> Operation:
    """An operation that comes along, read once. Raises TemplateError naming the dotted key."""
    return read_operation(shipped("templates") / name)


def read_operation(folder: Path) -> Operation:
    """The operation that a folder declares. Raises TemplateError naming the dotted key."""
    path = folder / FILE
    text = read_text(path, TemplateError)
    return _Reader(folder, read_toml(text, TemplateError, str(path))).read()


def expression_of(table: Table, key: str, text: str, known: Set[str]) -> Bound:
    """An expression that stands under a key of a table. Raises the table's error for a name that is not known there."""
    expression = Expression(text, f"{table.file}: {table.path(key)}")
    for name in sorted(expression.names - known):
        raise table.error(key, f"undeclared name {name!r} in {text!r}{did_you_mean(name, known)}")
    return expression.bind({})


class _Reader:
    """Reads the file's tables with errors that name the dotted key."""

    def __init__(self, folder: Path, table: Table) -> None:
        self.folder = folder
        self.table = table
        self.known: set[str] = set()

    def read(self) -> Operation:
        table = self.table
        table.allow(_KEYS)
        table.require(("runtime", "sizes", "words", "array", "cost"))
        self.section("similarity").allow(_SIMILARITY)
        sizes = tuple(self.size(name) for name in self.section("sizes").content)
        words = {name: self.enumeration(self.section("words"), name) for name in self.section("words").content}
        parts: list[Part] = []
        for name in self.section("parts").content:
            words[name], made = self.composed(name, words.get(name, ()))
            parts += made
        self.known |= {size.name for size in sizes} | words.keys() | {part.name for part in parts}
        derived = []
        for name in self.section("derived").content:
            derived.append((name, self.bound(self.section("derived"), name)))
            self.known.add(name)
        rules = tuple(
            Rule(self.bound(self.section("rules"), message), message) for message in self.section("rules").content
        )
        cost = self.section("cost")
        cost.allow({"reduction", "flops"})
        cost.require(("reduction", "flops"))
        runtime = table.word("runtime", "")
        if runtime not in {size.name for size in sizes}:
            raise table.error("runtime", f"{runtime!r} is no size")
        for name, allowed in (("dtype", tuple(DTYPE_BYTES)), ("layout", None)):
            if name not in words or (allowed is not None and not set(words[name]) <= set(allowed)):
                raise table.error(f"words.{name}", f"expected {', '.join(allowed or ('a list of layouts',))}")
        arrays = tuple(
            self.array(each, words["layout"]) for each in table.tables("array", "expected [[array]]", label="name")
        )
        if [array.role for array in arrays].count("out") != 1:
            raise table.error("array", "expected one array of the role out")
        return Operation(
            name=self.folder.name,
            folder=self.folder,
            runtime=runtime,
            sizes=sizes,
            words=words,
            parts=tuple(parts),
            derived=tuple(derived),
            rules=rules,
            arrays=arrays,
            similarity=tuple(tuple(self.apart(key)) for key in _SIMILARITY),
            reduction=self.bound(cost, "reduction"),
            flops=self.bound(cost, "flops"),
        )

    def section(self, key: str) -> Table:
        return self.table.table(key, f"expected a table [{key}]")

    def size(self, name: str) -> Size:
        table = self.section("sizes").table(name, "expected { doc = ..., default = ..., least = ... }")
        table.allow({"doc", "default", "least"})
        least = table.whole("least", 1, least=0)
        default = table.whole("default", least, least=least) if "default" in table else None
        return Size(name, table.word("doc", ""), default, least)

    def enumeration(self, table: Table, name: str) -> tuple[str, ...]:
        return tuple(_strings(table, name, table.get(name)))

    def composed(self, name: str, first: Sequence[str]) -> tuple[tuple[str, ...], tuple[Part, ...]]:
        """All words of an enumeration of two parts, those that [words] has before the others, and the parts."""
        table = self.section("parts").table(name, "expected two lists of words")
        if len(table.content) != 2:
            raise self.section("parts").error(name, "expected two lists of words")
        (stem, stems), (ending, endings) = ((key, self.enumeration(table, key)) for key in table.content)
        made = {
            f"{one}_{other}" if other != endings[0] else one: (one, other)
            for other in endings
            for one in stems
            if one != stems[0] or other == endings[0]
        }
        for word in first:
            if word not in made:
                raise self.section("words").error(name, f"{word!r} is not made of {stem} and {ending}")
        words = tuple(dict.fromkeys((*first, *made)))
        parts = (
            Part(stem, name, stems, {word: made[word][0] for word in words}),
            Part(ending, name, endings, {word: made[word][1] for word in words}),
        )
        return words, parts

    def bound(self, table: Table, key: str, default: str = "") -> Bound:
        return self.expression(table, key, table.word(key, default))

    def expression(self, table: Table, key: str, text: str) -> Bound:
        return expression_of(table, key, text, self.known)

    def apart(self, key: str) -> Iterator[Apart]:
        weights = self.section("similarity").table(key, "expected a table of expressions and weights")
        for text, weight in weights.content.items():
            if not is_time(weight):
                raise weights.error(text, f"expected a weight above 0, got {weight!r}")
            yield Apart(self.expression(weights, text, text), float(weight), factors=key == "factors")

    def array(self, table: Table, layouts: Sequence[str]) -> ArrayTemplate:
        table.allow(_ARRAY_KEYS)
        table.require(("name", "role", "shape"))
        name, role = table.word("name", ""), next((role for role in ROLES if role == table.get("role")), None)
        if not name.isidentifier():
            raise table.error("name", f"{name!r}: expected an identifier")
        if role is None:
            raise table.error("role", f"{table.get('role')!r}: expected one of {', '.join(ROLES)}")
        shapes = table.table("shape", "expected a list of extents for each layout")
        shapes.allow(layouts)
        shapes.require(layouts)
        match table.get("integers", [0, 0]):
            case [int(least), int(most)] if least <= most and ("integers" in table) == (role != "out"):
                pass
            case given:
                raise table.error("integers", f"expected the least and the most of an input's test data, got {given!r}")
        return ArrayTemplate(
            name=name,
            role=role,
            shapes={
                layout: tuple(
                    self.expression(shapes, layout, extent) for extent in _strings(shapes, layout, shapes.get(layout))
                )
                for layout in layouts
            },
            when=self.bound(table, "when", "true"),
            least=least,
            most=most,
            windows={axis: self.window(table, axis) for axis in self.axes(table, shapes)},
        )

    def axes(self, table: Table, shapes: Table) -> tuple[str, ...]:
        """The axes that have windows, each one of every layout."""
        windows = table.table("windows", "expected a table of axes")
        for layout in shapes.content:
            windows.allow(_strings(shapes, layout, shapes.get(layout)))
        return tuple(windows.content)

    def window(self, array: Table, axis: str) -> Mapping[str, Bound]:
        window = array.table("windows", "").table(axis, f"expected {{ {', '.join(_WINDOW_KEYS)} }}")
        window.allow(_WINDOW_KEYS)
        window.require(_WINDOW_KEYS)
        return {key: self.bound(window, key) for key in _WINDOW_KEYS}


def _strings(table: Table, key: str, value: object) -> list[str]:
    """A list of strings, at least one."""
    if not isinstance(value, list) or not value:
        raise table.error(key, f"expected a list of strings, got {value!r}")
    strings = [item for item in value if isinstance(item, str)]
    if len(strings) < len(value):
        raise table.error(key, f"expected a list of strings, got {value!r}")
    return strings
