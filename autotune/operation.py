"""What an operation is but for its kernels: its sizes, arrays and cost, as its folder's `operation.toml` declares them.

Everything that loops over the arrays of a problem, or over its sizes, asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autotune.declarations import (
    DTYPE_BYTES,
    ERROR_MODELS,
    READ,
    ROLES,
    Apart,
    Array,
    ArrayTemplate,
    Bounds,
    Part,
    Role,
    Rule,
    Size,
)
from autotune.errors import StudyError, TemplateError
from autotune.expressions.expression import FUNCTIONS, Bound, Expression
from autotune.table import Table, did_you_mean, is_time, read_toml
from autotune.trial import Value

FILE = "operation.toml"
REFERENCE = "reference.cuh"
NUMPY_REFERENCE = "reference.py"
RESERVED = ("packed_w", "workspace", "i")  # what kernels may take besides the arrays and the run-time size
MAX_SIZE = 2**31 - 1  # a size is a 32-bit int in every kernel
_KEYS = {
    "runtime",
    "sizes",
    "words",
    "parts",
    "derived",
    "rules",
    "array",
    "similarity",
    "cost",
    "errors",
    "independent",
}
_SIMILARITY = ("factors", "differences", "kinds")
_ARRAY_KEYS = {"name", "role", "shape", "integers", "when", "windows"}
_WINDOW_KEYS = ("outputs", "taps", "stride", "dilation", "pad")


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation as its file declares it. Two of one name and one text are equal, and pickled as their text."""

    name: str
    folder: Path
    """where its file, its reference and its families lie"""
    text: str
    """the file's"""
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
    bounds: Bounds
    independent: bool
    """whether outputs of one unit of the run-time size, such as an image, need the inputs of that unit alone"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and (self.name, self.text) == (other.name, other.text)

    def __hash__(self) -> int:
        return hash((self.name, self.text))

    def __reduce__(self) -> tuple[Callable[[Path, str], Operation], tuple[Path, str]]:
        return parse_operation, (self.folder, self.text)

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
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays that the reference takes, in the file's order."""
        return self.names_of(*READ)

    @property
    def output(self) -> ArrayTemplate:
        """The array that a kernel computes."""
        return next(array for array in self.arrays if array.role == "out")

    @property
    def outputs(self) -> str:
        """How many outputs a problem has, as an expression."""
        extents = next(iter(self.output.shapes.values()))
        return " * ".join(extent.expression.text for extent in extents)

    @property
    def changing(self) -> frozenset[str]:
        """The run-time size, and the derived sizes that follow from it."""
        found = {self.runtime}
        for name, bound in self.derived:
            if bound.names & found:
                found.add(name)
        return frozenset(found)

    def complete(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Every size and word of a problem in the file's order, defaults where one is not given.

        Raises StudyError for a name that is none of them, and for a size without a default that is missing.
        """
        names = (*(size.name for size in self.sizes), *self.words)
        for name in given:
            if name not in names:
                raise StudyError(f"{name}: {self.name} has no such size or word{did_you_mean(name, names)}")
        values: dict[str, Value] = {}
        for size in self.sizes:
            value = given.get(size.name, size.default)
            if value is None:
                raise StudyError(f"{size.name}: missing; {self.name} has no problem without it ({size.doc})")
            values[size.name] = value
        return {**values, **{name: given.get(name, words[0]) for name, words in self.words.items()}}

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
def parse_operation(folder: Path, text: str) -> Operation:
    """The operation of its file's text; it is named after the folder. Raises TemplateError naming the dotted key."""
    return _Reader(folder, read_toml(text, TemplateError, str(folder / FILE))).read(text)


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

    def read(self, text: str) -> Operation:
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
        self.check_names()
        for name in self.section("derived").content:
            derived.append((name, self.bound(self.section("derived"), name)))
            self.known.add(name)
        rules = tuple(
            Rule(self.bound(self.section("rules"), message), message) for message in self.section("rules").content
        )
        cost = self.section("cost")
        cost.allow({"reduction", "flops"})
        bounds = self.bounds()
        cost.require(("reduction", "flops") if bounds.model == "multilinear" else ("flops",))
        runtime = table.word("runtime", "")
        if runtime not in {size.name for size in sizes}:
            raise table.error("runtime", f"{runtime!r} is no size")
        if not set(words.get("dtype", ("",))) <= DTYPE_BYTES.keys():
            raise table.error("words.dtype", f"expected {', '.join(DTYPE_BYTES)}")
        arrays = tuple(
            self.array(each, words.get("layout", ()))
            for each in table.tables("array", "expected [[array]]", label="name")
        )
        self.check_arrays(arrays, runtime)
        return Operation(
            name=self.folder.name,
            folder=self.folder,
            text=text,
            runtime=runtime,
            sizes=sizes,
            words=words,
            parts=tuple(parts),
            derived=tuple(derived),
            rules=rules,
            arrays=arrays,
            similarity=tuple(tuple(self.apart(key)) for key in _SIMILARITY),
            reduction=self.bound(cost, "reduction", "1"),
            flops=self.bound(cost, "flops"),
            bounds=bounds,
            independent=table.flag("independent", default=True),
        )

    def check_names(self) -> None:
        """Sizes, words and derived sizes are names in expressions and in C++, each its own."""
        taken: set[str] = set(FUNCTIONS)
        for key in ("sizes", "words", "derived"):
            for name in self.section(key).content:
                if not name.isidentifier() or name in taken:
                    what = "is no name" if name not in taken else "is a function's, a size's or a word's name"
                    raise self.section(key).error(name, f"{what}; expected letters, digits and _ that are not taken")
                taken.add(name)

    def check_arrays(self, arrays: Sequence[ArrayTemplate], runtime: str) -> None:
        """Arrays have names of their own as arguments, and their parts lie where test data repeat."""
        independent = self.table.flag("independent", default=True)
        taken = {runtime, *RESERVED}
        for index, array in enumerate(arrays):
            key = f"array[{index}] ({array.name})"
            if array.name in taken:
                raise self.table.error(f"{key}.name", "another argument of kernels has this name")
            taken.add(array.name)
            if independent and not all(_first_or_not(extents, runtime) for extents in array.shapes.values()):
                what = f"{runtime}, the run-time size, is not its first axis; put it there, or say independent = false"
                raise self.table.error(f"{key}.shape", what)
        if [array.role for array in arrays].count("out") != 1:
            raise self.table.error("array", "expected one array of the role out")

    def bounds(self) -> Bounds:
        table = self.section("errors")
        table.allow({"model", "rtol", "atol"})
        model = next((each for each in ERROR_MODELS if each == table.word("model", "multilinear")), None)
        if model is None:
            raise table.error("model", f"{table.get('model')!r}: expected one of {', '.join(ERROR_MODELS)}")
        if model != "tolerance":
            table.allow({"model"})
            return Bounds(model)
        table.require(("rtol", "atol"))
        rtol, atol = (table.fraction(key) for key in ("rtol", "atol"))
        return Bounds(model, rtol or 0.0, atol or 0.0)

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
        shapes = self.shapes(table, layouts)
        match table.get("integers", [0, 0]):
            case [int(least), int(most)] if least <= most and ("integers" in table) == (role != "out"):
                pass
            case given:
                raise table.error("integers", f"expected the least and the most of an input's test data, got {given!r}")
        return ArrayTemplate(
            name=name,
            role=role,
            shapes={
                layout: tuple(self.expression(table, f"shape.{layout}".rstrip("."), extent) for extent in extents)
                for layout, extents in shapes.items()
            },
            dtypes=self.dtypes(table),
            when=self.bound(table, "when", "true"),
            least=least,
            most=most,
            windows={axis: self.window(table, axis) for axis in self.axes(table, shapes)},
        )

    def shapes(self, array: Table, layouts: Sequence[str]) -> Mapping[str, list[str]]:
        """The extents of each layout; of the layout that is not named, where the operation has no word for it."""
        if not layouts:
            return {"": _strings(array, "shape", array.get("shape"))}
        shapes = array.table("shape", "expected a list of extents for each layout")
        shapes.allow(layouts)
        shapes.require(layouts)
        return {layout: _strings(shapes, layout, shapes.get(layout)) for layout in layouts}

    def dtypes(self, array: Table) -> Mapping[str, str]:
        """What elements are stored as by the problem's dtype: that, or what `dtype` says, for all or for each."""
        words = self.enumeration(self.section("words"), "dtype")
        match array.get("dtype", {word: word for word in words}):
            case str(dtype):
                of = dict.fromkeys(words, dtype)
            case {**named}:
                array.table("dtype", "").allow(words)
                of = {word: str(named.get(word, word)) for word in words}
            case given:
                raise array.error(
                    "dtype", f"expected one of {', '.join(DTYPE_BYTES)}, or such a one by dtype, got {given!r}"
                )
        for dtype in of.values():
            if dtype not in DTYPE_BYTES:
                raise array.error("dtype", f"{dtype!r}: expected one of {', '.join(DTYPE_BYTES)}")
        return of

    def axes(self, table: Table, shapes: Mapping[str, list[str]]) -> tuple[str, ...]:
        """The axes that have windows, each one of every layout."""
        windows = table.table("windows", "expected a table of axes")
        for extents in shapes.values():
            windows.allow(extents)
        return tuple(windows.content)

    def window(self, array: Table, axis: str) -> Mapping[str, Bound]:
        window = array.table("windows", "").table(axis, f"expected {{ {', '.join(_WINDOW_KEYS)} }}")
        window.allow(_WINDOW_KEYS)
        window.require(_WINDOW_KEYS)
        return {key: self.bound(window, key) for key in _WINDOW_KEYS}


def _first_or_not(extents: tuple[Bound, ...], runtime: str) -> bool:
    """Whether an array has a part for each unit of the run-time size, one behind the other, or is of all of them."""
    first, *others = extents
    return not any(runtime in each.names for each in (others if first.expression.text == runtime else extents))


def _strings(table: Table, key: str, value: object) -> list[str]:
    """A list of strings, at least one."""
    if not isinstance(value, list) or not value:
        raise table.error(key, f"expected a list of strings, got {value!r}")
    strings = [item for item in value if isinstance(item, str)]
    if len(strings) < len(value):
        raise table.error(key, f"expected a list of strings, got {value!r}")
    return strings
