"""Read an `[[array]]` from an operation's file. Errors give the dotted key."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Mapping, Sequence

from autotune.expressions.expression import Bound
from autotune.operation.declarations import COMPUTED, DRAWN, FILLS, READ, ROLES, SCALAR, ArrayTemplate, Fill
from autotune.operation.storage_types import FLOATS, SCALAR_TYPES, TYPES
from autotune.toml_table import Table, did_you_mean

_KEYS = {"name", "role", "shape", "dtype", "fill", "integers", "between", "when", "windows", "rtol", "atol"}
_WINDOW_KEYS = ("outputs", "taps", "stride", "dilation", "pad")
_NOT_READ = f"only arrays of the roles {', '.join(READ)} have test data"
_CPP = frozenset(
    (
        *("alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch"),
        *("char", "class", "compl", "const", "constexpr", "continue", "decltype", "default", "delete", "do"),
        *("double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for"),
        *("friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not"),
        *("not_eq", "nullptr", "operator", "or", "or_eq", "private", "protected", "public", "register"),
        *("reinterpret_cast", "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast"),
        *("struct", "switch", "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid"),
        *("typename", "union", "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor"),
        "xor_eq",
    )
)


def is_name(name: str) -> bool:
    """Return whether a name can be used in expressions, in C++ and in Python."""
    return name.isidentifier() and name.isascii() and name not in _CPP and not keyword.iskeyword(name)


def what_is_wrong(name: str) -> str:
    """Return the reason why a name can't be used."""
    if name.isidentifier() and name.isascii():
        return f"{name!r} is a word of C++ or Python; choose another name"
    return f"{name!r} is not a name; expected letters, digits and _, no digit first"


def strings(table: Table, key: str, value: object, example: str = '["4"]') -> list[str]:
    """Read a list of at least one string."""
    found = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not found or not isinstance(value, list) or len(found) < len(value):
        raise table.error(key, f"expected a list of strings, such as {example}, got {value!r}")
    return found


class ArrayReader:
    """Reads an array's declaration. `expression` parses the expression under a key of a table."""

    def __init__(
        self,
        table: Table,
        words: Mapping[str, Sequence[str]],
        expression: Callable[[Table, str, object], Bound],
    ) -> None:
        self.table = table
        self.words = words
        self.expression = expression

    def read(self) -> ArrayTemplate:
        """Read the array. Raises TemplateError with the dotted key."""
        table = self.table
        table.allow(_KEYS)
        name, role = table.word("name", ""), next((role for role in ROLES if role == table.get("role")), None)
        table.require(("name", "role") if role == SCALAR else ("name", "role", "shape"))
        if not is_name(name):
            raise table.error("name", what_is_wrong(name))
        if role is None:
            near = did_you_mean(str(table.get("role")), ROLES)
            raise table.error("role", f"{table.get('role')!r}: expected one of {', '.join(ROLES)}{near}")
        type_word, dtypes = self.dtypes()
        shapes = self.shapes() if role != SCALAR else self.scalar_shapes(dtypes)
        fill = self.fill(role in READ, dtypes)
        least, most = self.integers(fill, is_read=role in READ)
        low, high = self.between(fill)
        if role not in COMPUTED:
            for key in ("rtol", "atol"):
                if key in table:
                    raise table.error(key, "leave it out: only outputs have a tolerance")
        return ArrayTemplate(
            name=name,
            role=role,
            shapes={
                layout: tuple(self.expression(table, f"shape.{layout}".rstrip("."), extent) for extent in extents)
                for layout, extents in shapes.items()
            },
            type_word=type_word,
            dtypes=dtypes,
            when=self.expression(table, "when", table.get("when", "true")),
            fill=fill,
            least=least,
            most=most,
            low=low,
            high=high,
            windows={axis: self.window(axis) for axis in self.axes(shapes, is_read=role in READ)},
            rtol=table.fraction("rtol"),
            atol=table.fraction("atol"),
        )

    def shapes(self) -> Mapping[str, list[str]]:
        """Read the extents by layout. If the operation has no layouts, the key is empty."""
        array, layouts = self.table, self.words.get("layout", ())
        if not layouts:
            return {"": strings(array, "shape", array.get("shape"))}
        shapes = array.table("shape", "expected a list of extents for each layout")
        shapes.allow(layouts)
        shapes.require(layouts)
        return {layout: strings(shapes, layout, shapes.get(layout)) for layout in layouts}

    def scalar_shapes(self, dtypes: Mapping[str, str]) -> Mapping[str, list[str]]:
        """Return the shape of a number that kernels take by value, which is one element in each layout."""
        for key in ("shape", "when", "windows"):
            if key in self.table:
                raise self.table.error(key, "leave it out: a scalar is one number, and every problem has it")
        if len(set(dtypes.values())) > 1 or next(iter(dtypes.values())) not in SCALAR_TYPES:
            raise self.table.error("dtype", f"expected one of {', '.join(SCALAR_TYPES)}, the same in every problem")
        return {layout: ["1"] for layout in self.words.get("layout", ("",))}

    def dtypes(self) -> tuple[str, Mapping[str, str]]:
        """Read the word that determines the element type, and the type for each of its values.

        The key `dtype` may give another word whose values are types, one type for every problem, or a type for each of
        the problem's storage types. By default, the elements have the problem's storage type.
        """
        array, word, words = self.table, "dtype", self.words["dtype"]
        match array.get("dtype", {}):
            case str(other) if other in self.words and other not in TYPES:
                word, words = other, self.words[other]
                of = dict(zip(words, words, strict=True))
            case str(dtype):
                of = dict.fromkeys(words, dtype)
            case {**named}:
                if named:
                    array.table("dtype", "").allow(words)
                of = {word: str(named.get(word, word)) for word in words}
            case given:
                known = ", ".join(TYPES)
                raise array.error(
                    "dtype", f"expected one of {known}, or a table with one for each dtype, got {given!r}"
                )
        for dtype in of.values():
            if dtype not in TYPES:
                near = did_you_mean(dtype, (*TYPES, *self.words))
                raise array.error("dtype", f"{dtype!r}: expected one of {', '.join(TYPES)}, or a word of types{near}")
        return word, of

    def fill(self, is_read: bool, dtypes: Mapping[str, str]) -> Fill:  # noqa: FBT001
        """Read the kind of the array's test data.

        Raises TemplateError if an array without test data has this key, or if the array's type can't hold the data.
        """
        if "fill" in self.table and not is_read:
            raise self.table.error("fill", f"leave it out: {_NOT_READ}")
        whole = [dtype for dtype in dtypes.values() if dtype not in FLOATS]
        word = self.table.word("fill", "integers" if whole else "normal")
        fill = next((each for each in FILLS if each == word), None)
        if fill is None:
            near = did_you_mean(word, FILLS)
            raise self.table.error("fill", f"{word!r}: expected one of {', '.join(FILLS)}{near}")
        if whole and fill in ("normal", "uniform"):
            raise self.table.error("fill", f"{fill} are not integers, and it is stored as {whole[0]}")
        return fill

    def integers(self, fill: Fill, *, is_read: bool) -> tuple[Bound, Bound]:
        """Read the bounds of whole-number test data: numbers, or expressions of the problem."""
        wanted = is_read and fill in DRAWN
        if wanted != ("integers" in self.table):
            why = "missing; expected the minimum and the maximum of its test data, such as [-8, 8]"
            why += f"; {fill} data are followed by a run on whole numbers" if fill != "integers" else ""
            if not wanted:
                why = f"leave it out: its test data are {fill}" if is_read else f"leave it out: {_NOT_READ}"
            raise self.table.error("integers", why)
        match self.table.get("integers", [0, 0]):
            case [bool(), _] | [_, bool()]:
                pass
            case [int(least), int(most)] if least > most:
                pass
            case [int() | str() as least, int() | str() as most]:
                low, high = (self.expression(self.table, "integers", str(each)) for each in (least, most))
                return low, high
        given = self.table.get("integers")
        raise self.table.error("integers", f"expected the minimum and the maximum of its test data, got {given!r}")

    def between(self, fill: Fill) -> tuple[float, float]:
        """Read the bounds of uniform test data."""
        if "between" in self.table and fill != "uniform":
            raise self.table.error("between", 'is for fill = "uniform"')
        match self.table.get("between", [0, 1]):
            case [int() | float() as low, int() | float() as high] if low < high and math.isfinite(high - low):
                return float(low), float(high)
            case given:
                raise self.table.error("between", f"expected two numbers, the lower first, got {given!r}")

    def axes(self, shapes: Mapping[str, list[str]], *, is_read: bool) -> tuple[str, ...]:
        """Read the axes that have windows. Each of them must occur in every layout."""
        if "windows" in self.table and not is_read:
            raise self.table.error("windows", "leave it out: only arrays of the roles in, weights, inout are read")
        windows = self.table.table("windows", "expected a table of axes")
        for extents in shapes.values():
            windows.allow(extents)
        return tuple(windows.content)

    def window(self, axis: str) -> Mapping[str, Bound]:
        window = self.table.table("windows", "").table(axis, f"expected {{ {', '.join(_WINDOW_KEYS)} }}")
        window.allow(_WINDOW_KEYS)
        window.require(_WINDOW_KEYS)
        return {key: self.expression(window, key, window.get(key)) for key in _WINDOW_KEYS}
