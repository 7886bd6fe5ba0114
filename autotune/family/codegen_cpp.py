"""Write a header's expression, with parameters and device as constants, as text for people and as C++.

In C++, a problem's size is a member of `layer`, a header's function is a function, and a number is a `Whole`, so that
C++ doesn't compute it in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.expressions.expression import Apply, Choice, Expression, Items, Known, Logic, Name, Tree, apply
from autotune.expressions.functions import Evaluated
from autotune.operation.operation import Operation
from autotune.trial import Value

_CONDITIONAL, _OR, _AND, _NOT, _COMPARED, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)  # operator precedence
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">="}
_NOT_IN_CPP = ("**", "bank_conflicts")


@dataclass(frozen=True, slots=True)
class Folded:
    """The remainder of an expression after folding: its value if known, and its text in a header and in C++."""

    text: str
    cpp: str
    value: Evaluated | None = None
    """None: the value depends on the problem"""
    binds: int = _ATOM
    natural: bool = False
    """whether the value is never negative, so that C++ divides it as Python does"""
    plain: bool = False
    """whether the value is an int or a bool in C++ rather than a Whole, so that C++ would compute in 32 bits"""


def fold(
    expression: Expression, known: Mapping[str, Value], declared: Operation, natural: frozenset[str] = frozenset()
) -> Folded:
    """Fold the constants in an expression about one of an operation's problems.

    `natural` lists unknown names whose values are never negative, in addition to the problem's sizes. Raises
    TemplateError for anything that C++ can't express: a power, bank conflicts, or a list that depends on the problem.
    """
    return _Writer(expression, declared, natural | declared.numbers).write(expression.folded(known))


def _constant(value: Evaluated, kind: str = "") -> Folded:
    """Write a value. `kind` is a word's enumeration, or "" if C++ doesn't know the word."""
    if isinstance(value, bool):
        return Folded(str(value).lower(), str(value).lower(), value, natural=True, plain=True)
    if isinstance(value, int):
        return Folded(str(value), str(value), value, _ATOM if value >= 0 else _SIGN, natural=value >= 0, plain=True)
    if isinstance(value, str):
        return Folded(repr(value), f"{kind.capitalize()}::{value}" if kind else repr(value), value)
    inside = ", ".join(_constant(item).text for item in value)
    return Folded(f"[{inside}]", f"{{{inside}}}", value)


def _cpp_name(name: str, declared: Operation) -> str:
    """Translate a name. A problem's field becomes a member and a value derived from fields a method; other
    names stay.
    """
    if name not in declared.names:
        return name
    methods = (*(part.name for part in declared.parts), *(derived for derived, _ in declared.derived))
    return f"layer.{name}()" if name in methods else f"layer.{name}"


class _Writer:
    """Writes an expression's tree."""

    def __init__(self, expression: Expression, declared: Operation, natural: frozenset[str]) -> None:
        self.expression, self.declared, self.natural = expression, declared, natural

    def write(self, tree: Tree, kind: str = "") -> Folded:
        match tree:
            case Known(value):
                return _constant(value, kind)
            case Name(name):
                return Folded(name, _cpp_name(name, self.declared), natural=name in self.natural)
            case Logic(stops_at, left, right):
                return _logic(self.write(left), self.write(right), stops_at=stops_at)
            case Choice(test, then, otherwise):
                return _choice(self.write(test), self.write(then, kind), self.write(otherwise, kind))
            case Apply(operation, (Choice(test, then, otherwise), right)) if operation in (
                *_COMPARISONS,
                "in",
                "notin",
            ):
                # Comparisons with words that C++ does not know become true and false.
                return self.write(Choice(test, apply(operation, then, right), apply(operation, otherwise, right)))
            case Apply("not", (inner,)):
                return _negated(self.write(inner))
            case Apply("neg", (inner,)):
                part = _whole(self.write(inner))
                return Folded(f"-{_held(part.text, part, _ATOM)}", f"-{_held(part.cpp, part, _ATOM)}", None, _SIGN)
            case Apply("in" | "notin" as operation, (left, right)):
                kind = self.kind(left)
                return self.membership(self.write(left), self.write(right, kind), kind, inside=operation == "in")
            case Apply(operation, (left, right)) if operation in _COMPARISONS:
                kind = self.kind(left, right)
                return _between(f" {_COMPARISONS[operation]} ", self.write(left, kind), self.write(right, kind))
            case Apply("+" | "-" | "*" | "//" | "%" as sign, (left, right)):
                return _arithmetic(sign, self.write(left), self.write(right))
            case Apply(name, arguments) if name not in _NOT_IN_CPP:
                return _called(name, [self.write(argument) for argument in arguments])
            case Apply() | Items():
                raise self.expression.error("has a part that C++ cannot express")

    def kind(self, *sides: Tree) -> str:
        """Return the enumeration of the words in a comparison, or "" for numbers."""
        words = self.declared.enumerations
        return next((side.name for side in sides if isinstance(side, Name) and side.name in words), "")

    def membership(self, left: Folded, right: Folded, kind: str, *, inside: bool) -> Folded:
        if not isinstance(right.value, tuple):
            raise self.expression.error("indexes something that is not a list")
        sign, join = ("==", " || ") if inside else ("!=", " && ")
        cpp = join.join(f"{_held(left.cpp, left, _SUM)} {sign} {_constant(item, kind).cpp}" for item in right.value)
        text = f"{_held(left.text, left, _SUM)} {'in' if inside else 'not in'} {right.text}"
        return Folded(text, f"({cpp})", None, _COMPARED, natural=True, plain=True)


def _logic(left: Folded, right: Folded, *, stops_at: bool) -> Folded:
    """Fold `or`, which stops at a true value, or `and`."""
    if left.value is not None:
        return _constant(stops_at) if bool(left.value) == stops_at else right
    if right.value is not None:
        return _constant(stops_at) if bool(right.value) == stops_at else left
    word, sign, binds = ("or", "||", _OR) if stops_at else ("and", "&&", _AND)
    text = f"{_held(left.text, left, binds)} {word} {_held(right.text, right, binds)}"
    # Compilers warn about && in || without parentheses.
    sides = [f"({side.cpp})" if side.binds < _NOT and side.binds != binds else side.cpp for side in (left, right)]
    return Folded(text, f"{sides[0]} {sign} {sides[1]}", None, binds, natural=True, plain=True)


def _negated(inner: Folded) -> Folded:
    if inner.value is not None:
        return _constant(not inner.value)
    text, cpp = _held(inner.text, inner, _NOT), _held(inner.cpp, inner, _SIGN)
    return Folded(f"not {text}", f"!{cpp}", None, _NOT, natural=True, plain=True)


def _choice(test: Folded, then: Folded, otherwise: Folded) -> Folded:
    if test.value is not None:
        return then if test.value else otherwise
    if then == otherwise:
        return then
    if isinstance(then.value, bool):
        return _logic(test if then.value else _negated(test), otherwise, stops_at=then.value)
    if isinstance(otherwise.value, bool):
        return _logic(_negated(test) if otherwise.value else test, then, stops_at=otherwise.value)
    text = f"{_held(then.text, then, _OR)} if {_held(test.text, test, _OR)} else {otherwise.text}"
    cpp = f"{_held(test.cpp, test, _COMPARED)} ? {_held(then.cpp, then, _OR)} : {otherwise.cpp}"
    natural, plain = then.natural and otherwise.natural, then.plain and otherwise.plain
    return Folded(text, cpp, None, _CONDITIONAL, natural, plain)


def _between(sign: str, left: Folded, right: Folded) -> Folded:
    """Write a comparison."""
    text = sign.join(_held(side.text, side, _SUM) for side in (left, right))
    cpp = sign.join(_held(side.cpp, side, _SUM) for side in (left, right))
    return Folded(text, cpp, None, _COMPARED, natural=True, plain=True)


def _whole(part: Folded) -> Folded:
    """Wrap an expression that C++ would compute in 32 bits in `Whole`, the 64-bit integer type."""
    return replace(part, cpp=f"Whole({part.cpp})", binds=_ATOM, plain=False) if part.plain else part


def _arithmetic(sign: str, left: Folded, right: Folded) -> Folded:
    if (sign in "+-" and right.value == 0) or (sign in ("*", "//") and right.value == 1):
        return left
    if (sign == "+" and left.value == 0) or (sign == "*" and left.value == 1):
        return right
    if (sign == "*" and 0 in (left.value, right.value)) or (sign == "%" and right.value == 1):
        return _constant(0)
    if right.plain:
        left = _whole(left)
    binds = _SUM if sign in "+-" else _PRODUCT
    natural = left.natural and right.natural and sign != "-"
    text = f"{_held(left.text, left, binds)} {sign} {_held(right.text, right, binds + 1)}"
    if sign in ("//", "%") and not natural:
        function = "floor_div" if sign == "//" else "floor_mod"
        return Folded(text, f"{function}({left.cpp}, {right.cpp})", None, binds)
    cpp_sign = "/" if sign == "//" else sign
    cpp = f"{_held(left.cpp, left, binds)} {cpp_sign} {_held(right.cpp, right, binds + 1)}"
    return Folded(text, cpp, None, binds, natural)


def _called(name: str, arguments: list[Folded]) -> Folded:
    if name in ("ceil_div", "round_up") and arguments[1].value == 1:
        return arguments[0]
    text = f"{name}({', '.join(argument.text for argument in arguments)})"
    *rest, cpp = [argument.cpp for argument in arguments]
    if name in ("min", "max"):  # the C++ functions take two arguments
        for argument in reversed(rest):
            cpp = f"{name}({argument}, {cpp})"
    else:
        cpp = f"{name}({', '.join((*rest, cpp))})"
    return Folded(text, cpp, natural=all(argument.natural for argument in arguments))


def _held(text: str, part: Folded, binds: int) -> str:
    """Return a part's text, in parentheses if its precedence is too low."""
    return text if part.binds >= binds else f"({text})"
