"""An operation without its kernels: the sizes, arrays and cost declared in its folder's `operation.toml`.

All code that loops over a problem's arrays or sizes uses this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autotune.autotune_runtime.activations import BY_WORD
from autotune.errors import StudyError, TemplateError, quoted, shortened
from autotune.expressions.expression import Bound
from autotune.expressions.functions import FUNCTIONS
from autotune.expressions.typed_names import expression_of, number_names
from autotune.operation.array_declarations import ArrayReader, is_name, strings, what_is_wrong
from autotune.operation.declarations import (
    COMPUTED,
    ERROR_MODELS,
    IN_MESSAGE,
    MAX_SIZE,
    READ,
    Apart,
    Array,
    ArrayTemplate,
    Bounds,
    Part,
    Role,
    Rule,
    Size,
)
from autotune.operation.storage_types import TYPES
from autotune.toml_table import Table, did_you_mean, is_time, read_toml
from autotune.trial import Value

FILE = "operation.toml"
REFERENCE = "reference.cuh"
NUMPY_REFERENCE = "reference.py"
DATA = "data.py"  # file next to `operation.toml` with the test data for `fill = "data"`
RESERVED = ("packed_w", "workspace", "i")  # arguments of kernels other than arrays and run-time sizes
_ACTIVATIONS = ("identity", *BY_WORD)  # the activations that "all" stands for
_OF_ARGUMENTS = ("size_bytes", "workspace_bytes", "stream")  # further arguments of an export's functions
_KEYS = {
    *("runtime", "sizes", "words", "parts", "derived", "rules", "array", "similarity", "cost", "errors", "independent"),
    "families",
}
_NAN = "propagates"  # the value of `nan` in [errors]
_SIMILARITY = ("factors", "differences", "kinds")


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation as declared in its file. Operations with the same name and text are equal, and are pickled
    as text.
    """

    name: str
    folder: Path
    """the folder with the operation's file, reference and families"""
    text: str
    """content of the operation's file"""
    references: tuple[tuple[str, str], ...]
    """name and text of each reference in the folder (one is required) and of data.py; empty for an operation
    from a database
    """
    runtime: tuple[str, ...]
    """the sizes that are passed to a kernel at launch, in the order of the C interface"""
    sizes: tuple[Size, ...]
    words: Mapping[str, tuple[str, ...]]
    """the values of each enumeration; the first is the default"""
    parts: tuple[Part, ...]
    derived: tuple[tuple[str, Bound], ...]
    rules: tuple[Rule, ...]
    arrays: tuple[ArrayTemplate, ...]
    similarity: tuple[tuple[Apart, ...], ...]
    """the terms of the distance of two problems, in the order of the sum"""
    reduction: Bound
    flops: Bound
    bounds: Bounds
    independent: bool
    """whether the outputs of a unit of the leading size, such as an image, need only the inputs of that unit"""
    families: tuple[str, ...]
    """OPERATION/NAME of other operations' families that support this one too"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and (self.name, self.text) == (other.name, other.text)

    def __hash__(self) -> int:
        return hash((self.name, self.text))

    def __reduce__(self) -> tuple[Callable[..., Operation], tuple[object, ...]]:
        return parse_operation, (self.folder, self.text, self.references)

    @property
    def names(self) -> frozenset[str]:
        """Every name that expressions about a problem may use."""
        return frozenset((*(size.name for size in self.sizes), *self.enumerations, *(name for name, _ in self.derived)))

    @property
    def numbers(self) -> frozenset[str]:
        """The names that aren't enumerations. Their values are never negative."""
        return self.names - self.enumerations.keys()

    @property
    def numeric_names(self) -> frozenset[str]:
        """The names whose values are numbers: the sizes and some of the derived values."""
        sizes = frozenset(size.name for size in self.sizes)
        return number_names(sizes, ((name, bound.expression) for name, bound in self.derived))

    @property
    def enumerations(self) -> Mapping[str, tuple[str, ...]]:
        """The values of each word and of each part of a word."""
        return {**self.words, **{part.name: part.values for part in self.parts}}

    def parts_of(self, word: str) -> tuple[Part, ...]:
        """Return the parts of an enumeration's words, or nothing if the words have no parts."""
        return tuple(part for part in self.parts if part.word == word)

    def names_of(self, *roles: Role) -> tuple[str, ...]:
        """Return the arrays with these roles, by name, in the file's order."""
        return tuple(array.name for array in self.arrays if array.role in roles)

    def seed(self, name: str) -> int:
        """Return the seed for an array's test data, which is the array's position in the file."""
        return [array.name for array in self.arrays].index(name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays that the reference takes, by name, in the file's order."""
        return self.names_of(*READ)

    @property
    def output(self) -> ArrayTemplate:
        """The first array that a kernel computes."""
        return next(array for array in self.arrays if array.role in COMPUTED)

    @property
    def outputs(self) -> str:
        """The number of elements of a problem's first output, as an expression."""
        extents = next(iter(self.output.shapes.values()))
        return " * ".join(extent.expression.text for extent in extents)

    @property
    def leading(self) -> str:
        """The first run-time size, such as conv2d's n: a network's batch size, along which test data repeat."""
        return self.runtime[0]

    @property
    def runtime_name(self) -> str:
        """The run-time sizes as they appear in messages: `n`, or `batch x m` if there are several."""
        return " x ".join(self.runtime)

    @property
    def changing(self) -> frozenset[str]:
        """The run-time sizes, and the derived sizes that depend on them."""
        found = set(self.runtime)
        for name, bound in self.derived:
            if bound.names & found:
                found.add(name)
        return frozenset(found)

    def complete(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Return all of a problem's sizes and words in the file's order, with defaults for missing ones.

        Raises StudyError for an unknown name, and for a missing size without a default.
        """
        names = (*(size.name for size in self.sizes), *self.words)
        for name in given:
            if name not in names:
                raise StudyError(f"{shortened(name)}: {self.name} has no such size or word{did_you_mean(name, names)}")
        values: dict[str, Value] = {}
        for size in self.sizes:
            value = given.get(size.name, size.default)
            if value is None:
                raise StudyError(f"{size.name}: missing; {self.name} has no problem without it ({size.doc})")
            values[size.name] = value
        return {**values, **{name: given.get(name, words[0]) for name, words in self.words.items()}}

    def names_from(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return a problem's sizes and words, the parts of the words, and the derived values, by name."""
        names = {**values, **{part.name: part.of[str(values[part.word])] for part in self.parts}}
        for name, bound in self.derived:
            if bound.names <= names.keys():
                names[name] = bound.value(names)
        return names

    def check(self, values: Mapping[str, Value]) -> None:
        """Raise StudyError if the sizes and words don't make a valid problem."""
        for size in self.sizes:
            value = values[size.name]
            if isinstance(value, bool) or not isinstance(value, int):
                raise StudyError(f"{size.name} = {quoted(value)}: expected a whole number")
            if not size.least <= value <= MAX_SIZE:
                raise StudyError(f"{size.name} = {quoted(value)}: expected {size.least} to {MAX_SIZE}")
        for name, allowed in self.words.items():
            if values[name] not in allowed:
                near = did_you_mean(str(values[name]), allowed)
                raise StudyError(f"{name} = {quoted(values[name])}: expected one of {', '.join(allowed)}{near}")
        names = self.names_from(values)
        for rule in self.rules:
            if why := rule.broken(names):
                raise StudyError(why)

    def arrays_of(self, names: Mapping[str, Value]) -> tuple[Array, ...]:
        """Return a problem's arrays in the file's order, leaving out those whose `when` doesn't hold."""
        return tuple(array.evaluate(names, self.runtime) for array in self.arrays if array.when.integer(names))


@lru_cache
def parse_operation(folder: Path, text: str, references: tuple[tuple[str, str], ...] = ()) -> Operation:
    """Parse the text of an operation's file. The operation is named after the folder.

    Raises TemplateError with the dotted key.
    """
    return _Reader(folder, read_toml(text, TemplateError, str(folder / FILE))).read(text, references)


class _Reader:
    """Reads the tables of an operation's file. Errors give the dotted key."""

    def __init__(self, folder: Path, table: Table) -> None:
        self.folder = folder
        self.table = table
        self.known: set[str] = set()
        self.enumerated: dict[str, tuple[str, ...]] = {}

    def read(self, text: str, references: tuple[tuple[str, str], ...]) -> Operation:
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
        self.enumerated |= words | {part.name: part.values for part in parts}
        self.known |= {size.name for size in sizes} | words.keys() | {part.name for part in parts}
        derived = []
        self.check_names()
        for name in self.section("derived").content:
            derived.append((name, self.bound(self.section("derived"), name)))
            self.known.add(name)
        rules = tuple(
            Rule(self.bound(self.section("rules"), message), self.message(message))
            for message in self.section("rules").content
        )
        cost = self.section("cost")
        cost.allow({"reduction", "flops"})
        bounds = self.bounds()
        cost.require(("reduction", "flops") if bounds.model == "multilinear" else ("flops",))
        runtime, known = table.words("runtime"), tuple(size.name for size in sizes)
        for name in runtime:
            if name not in known:
                near = did_you_mean(name, known)
                raise table.error("runtime", f"{name!r} is not a size{near}; sizes are {', '.join(known)}")
        if "dtype" not in words:
            raise table.error("words.dtype", f"missing; expected some of {', '.join(TYPES)}")
        for dtype in words["dtype"]:
            if dtype not in TYPES:
                near = did_you_mean(dtype, TYPES)
                raise table.error("words.dtype", f"{dtype!r}: expected some of {', '.join(TYPES)}{near}")
        arrays = tuple(
            ArrayReader(each, words, self.expression).read()
            for each in table.tables("array", "expected [[array]]", label="name")
        )
        self.check_arrays(arrays, runtime)
        for array in arrays:
            if bounds.model != "tolerance" and (array.rtol, array.atol) != (None, None):
                raise table.error(f"array ({array.name})", 'rtol and atol need model = "tolerance" in [errors]')
        return Operation(
            name=self.folder.name,
            folder=self.folder,
            text=text,
            references=references,
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
            families=table.words("families") if "families" in table else (),
        )

    def message(self, text: str) -> str:
        """Return a rule's error text after checking that its expressions can be parsed."""
        if not text.strip() or not text.isprintable():
            what = "expected a one-line message for problems that break the rule"
            raise self.table.error("rules", f"{text!r}: {what}")
        found = IN_MESSAGE.findall(text)
        if text.count("${") > len(found):
            raise self.table.error("rules", f"{text!r}: a ${{ has no }}")
        for inside in found:
            self.expression(self.section("rules"), text, inside)
        return text

    def check_names(self) -> None:
        """Check that sizes, words, parts of words and derived values have distinct names that are valid in C++."""
        owners = dict.fromkeys(FUNCTIONS, "a function") | {"device": "the device in headers"}
        parts = [self.section("parts").table(name, "") for name in self.section("parts").content]
        for table in (*map(self.section, ("sizes", "words", "derived")), *parts):
            for name in table.content:
                if not is_name(name):
                    raise table.error(name, what_is_wrong(name))
                if name in owners:
                    raise table.error(name, f"{owners[name]} has this name; choose another one")
                owners[name] = f"another in [{table.key}]"
        for name in self.section("parts").content:
            if name in self.section("sizes"):
                raise self.section("parts").error(name, "a size has this name; choose another one")

    def check_arrays(self, arrays: Sequence[ArrayTemplate], runtime: Sequence[str]) -> None:
        """Check that the arrays' argument names are distinct, and that the leading size can only be the first axis."""
        independent = self.table.flag("independent", default=True)
        leading, names = runtime[0], {*runtime, *RESERVED, *_OF_ARGUMENTS}
        for index, array in enumerate(arrays):
            key = f"array[{index}] ({array.name})"
            if array.name in names:
                raise self.table.error(f"{key}.name", "another argument has this name")
            names.add(array.name)
            if independent and not all(_first_or_not(extents, leading) for extents in array.shapes.values()):
                what = f"{leading}, the run-time size, is not its first axis; put it there, or set independent = false"
                raise self.table.error(f"{key}.shape", what)
        if not any(array.role in COMPUTED for array in arrays):
            raise self.table.error("array", f"expected at least one array of the role {' or '.join(COMPUTED)}")

    def bounds(self) -> Bounds:
        table = self.section("errors")
        table.allow({"model", "rtol", "atol", "nan"})
        model = next((each for each in ERROR_MODELS if each == table.word("model", "multilinear")), None)
        if model is None:
            near = did_you_mean(str(table.get("model")), ERROR_MODELS)
            raise table.error("model", f"{table.get('model')!r}{near}: expected one of {', '.join(ERROR_MODELS)}")
        if table.word("nan", _NAN) != _NAN:
            raise table.error("nan", f"{table.get('nan')!r}: expected {_NAN!r}; without the key they are not tested")
        if model != "tolerance":
            table.allow({"model", "nan"})
            return Bounds(model, nan_propagates="nan" in table)
        table.require(("rtol", "atol"))
        rtol, atol = (table.fraction(key) for key in ("rtol", "atol"))
        return Bounds(model, rtol or 0.0, atol or 0.0, "nan" in table)

    def section(self, key: str) -> Table:
        return self.table.table(key, f"expected a table [{key}]")

    def size(self, name: str) -> Size:
        table = self.section("sizes").table(name, "expected { doc = ..., default = ..., least = ... }")
        table.allow({"doc", "default", "least"})
        least = table.whole("least", 1, least=0)
        default = table.whole("default", least, least=least) if "default" in table else None
        return Size(name, table.word("doc", ""), default, least)

    def enumeration(self, table: Table, name: str) -> tuple[str, ...]:
        words = tuple(strings(table, name, table.get(name), '["f32", "f16"]' if name == "dtype" else '["one", "two"]'))
        for word in words:
            if words.count(word) > 1:
                raise table.error(name, f"{word!r} occurs twice")
            if not is_name(word) and name != "dtype":  # storage types don't have to be valid names
                raise table.error(name, what_is_wrong(word))
        return words

    def composed(self, name: str, first: Sequence[str]) -> tuple[tuple[str, ...], tuple[Part, ...]]:
        """Return all words of an enumeration with two parts, beginning with the words in [words], and the two parts."""
        table = self.section("parts").table(name, "expected two lists of words")
        if len(table.content) != 2:
            raise self.section("parts").error(name, "expected two lists of words")
        (stem, stems), (ending, endings) = (
            (key, _ACTIVATIONS if table.get(key) == "all" else self.enumeration(table, key)) for key in table.content
        )
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
        return self.expression(table, key, table.get(key, default))

    def expression(self, table: Table, key: str, value: object) -> Bound:
        return expression_of(table, key, value, self.known, self.enumerated).bind({})

    def apart(self, key: str) -> Iterator[Apart]:
        weights = self.section("similarity").table(key, "expected a table of expressions and weights")
        for text, weight in weights.content.items():
            if not is_time(weight):
                raise weights.error(text, f"expected a weight above 0, got {weight!r}")
            if key == "factors" and text in self.enumerated:
                raise weights.error(text, "is a word, but factors take numbers; put it under differences")
            yield Apart(self.expression(weights, text, text), float(weight), factors=key == "factors")


def _first_or_not(extents: tuple[Bound, ...], leading: str) -> bool:
    """Return whether the leading size is exactly an array's first extent, or occurs in none of them."""
    first, *others = extents
    return not any(leading in each.names for each in (others if first.expression.text == leading else extents))
