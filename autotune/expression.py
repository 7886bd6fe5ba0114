"""Expressions of a template's header: parsed once as Jinja expressions, compiled to plain closures.

A Jinja call costs about 9 us and a space has 100,000 configs, so the parsed tree is turned into nested Python
closures and everything already known (the problem, the device) is folded away by `Expression.bind`.
Only a whitelist of nodes exists: no attribute but `device.NAME`, no subscript, no call but FUNCTIONS.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.parser import Parser

from autotune.errors import TemplateError
from autotune.trial import Value

Names = Mapping[str, Value]
Evaluated = Value | tuple[Value, ...]


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` not below value."""
    return ceil_div(value, multiple) * multiple


def is_pow2(value: int) -> bool:
    """True for 1, 2, 4, 8, ..."""
    return value > 0 and value & (value - 1) == 0


FUNCTIONS: Mapping[str, Callable[..., int | bool]] = {
    "ceil_div": ceil_div,
    "round_up": round_up,
    "is_pow2": is_pow2,
    "min": min,
    "max": max,
}

_BINARY: Mapping[type[nodes.BinExpr], Callable[[Value, Value], Value]] = {
    nodes.Add: operator.add,
    nodes.Sub: operator.sub,
    nodes.Mul: operator.mul,
    nodes.FloorDiv: operator.floordiv,
    nodes.Mod: operator.mod,
    nodes.Pow: operator.pow,
}
_COMPARE: Mapping[str, Callable[[Evaluated, Evaluated], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda value, container: value in container,  # type: ignore[operator]
    "notin": lambda value, container: value not in container,  # type: ignore[operator]
}


@dataclass(frozen=True, slots=True)
class _Known:
    """A subtree whose value no longer depends on anything."""

    value: Evaluated


_Closure = Callable[[Names], Evaluated]
_Compiled = _Known | _Closure


def _run(compiled: _Compiled) -> _Closure:
    if isinstance(compiled, _Known):
        value = compiled.value
        return lambda _: value
    return compiled


class _Unsupported(Exception):
    """A node that expressions do not have."""


def _compile(node: nodes.Expr, known: Names) -> _Compiled:
    """Fold what `known` decides and return a closure over the names that remain."""
    match node:
        case nodes.Const():
            return _Known(node.value)
        case nodes.Tuple() | nodes.List():
            items = [_compile(item, known) for item in node.items]
            if all(isinstance(item, _Known) for item in items):
                return _Known(tuple(item.value for item in items if isinstance(item, _Known)))  # type: ignore[misc]
            closures = [_run(item) for item in items]
            return lambda names: tuple(closure(names) for closure in closures)  # type: ignore[misc]
        case nodes.Name() | nodes.Getattr():
            name = _name(node)
            if name in known:
                return _Known(known[name])
            return lambda names: names[name]
        case nodes.BinExpr() if isinstance(node, (nodes.And, nodes.Or)):
            return _compile_logic(node, known)
        case nodes.BinExpr() if type(node) in _BINARY:
            return _apply(_BINARY[type(node)], [_compile(node.left, known), _compile(node.right, known)])
        case nodes.Not():
            return _apply(operator.not_, [_compile(node.node, known)])
        case nodes.Neg():
            return _apply(operator.neg, [_compile(node.node, known)])
        case nodes.Compare():
            return _compile_compare(node, known)
        case nodes.CondExpr() if node.expr2 is not None:
            test = _compile(node.test, known)
            if isinstance(test, _Known):
                return _compile(node.expr1 if test.value else node.expr2, known)
            then, otherwise = _run(_compile(node.expr1, known)), _run(_compile(node.expr2, known))
            return lambda names: then(names) if test(names) else otherwise(names)
        case nodes.Call() if isinstance(node.node, nodes.Name) and not (
            node.kwargs or node.dyn_args or node.dyn_kwargs
        ):
            if node.node.name not in FUNCTIONS:
                raise _Unsupported(f"{node.node.name}() does not exist; there are {', '.join(sorted(FUNCTIONS))}")
            return _apply(FUNCTIONS[node.node.name], [_compile(argument, known) for argument in node.args])
    if isinstance(node, nodes.Div):
        raise _Unsupported("/ yields a fraction; use // or ceil_div")
    raise _Unsupported(f"{type(node).__name__} is not part of expressions")


def _apply(function: Callable[..., Evaluated], arguments: list[_Compiled]) -> _Compiled:
    if all(isinstance(argument, _Known) for argument in arguments):
        try:
            return _Known(function(*(argument.value for argument in arguments if isinstance(argument, _Known))))
        except (ArithmeticError, TypeError, ValueError):
            pass  # raise when evaluated, so that a branch never taken never fails
    closures = [_run(argument) for argument in arguments]
    if len(closures) == 2:
        left, right = closures
        return lambda names: function(left(names), right(names))
    if len(closures) == 1:
        only = closures[0]
        return lambda names: function(only(names))
    return lambda names: function(*(closure(names) for closure in closures))


def _compile_logic(node: nodes.And | nodes.Or, known: Names) -> _Compiled:
    stops_at = isinstance(node, nodes.Or)
    left = _compile(node.left, known)
    if isinstance(left, _Known):
        return left if bool(left.value) == stops_at else _compile(node.right, known)
    right = _run(_compile(node.right, known))
    if stops_at:
        return lambda names: left(names) or right(names)
    return lambda names: left(names) and right(names)


def _compile_compare(node: nodes.Compare, known: Names) -> _Compiled:
    first = _compile(node.expr, known)
    links = [(_COMPARE[operand.op], _compile(operand.expr, known)) for operand in node.ops]
    if len(links) == 1:
        return _apply(links[0][0], [first, links[0][1]])

    def chain(names: Names) -> bool:
        left = _run(first)(names)
        for compare, operand in links:
            right = _run(operand)(names)
            if not compare(left, right):
                return False
            left = right
        return True

    return chain


def _name(node: nodes.Expr) -> str:
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    raise _Unsupported("only device.NAME has a dot")


def _names_in(node: nodes.Node) -> set[str]:
    if isinstance(node, nodes.Getattr):
        return {_name(node)}
    if isinstance(node, nodes.Name):
        return {node.name}
    children = list(node.iter_child_nodes())
    if isinstance(node, nodes.Call):
        children = [child for child in children if child is not node.node]
    return set().union(*(_names_in(child) for child in children)) if children else set()


class Bound:
    """An expression with some names folded away; call it with the rest."""

    __slots__ = ("_closure", "_expression")

    def __init__(self, expression: Expression, closure: _Closure) -> None:
        self._expression = expression
        self._closure = closure

    @property
    def names(self) -> frozenset[str]:
        """Every name in the expression's text."""
        return self._expression.names

    def integer(self, names: Names) -> int:
        """The value as an int (bools count). Raises TemplateError for anything else."""
        value = self._value(names)
        if not isinstance(value, int):
            raise self._expression.error(f"yields {value!r}, expected a whole number or true/false")
        return int(value)

    def word(self, names: Names) -> str:
        """The value as a string. Raises TemplateError for anything else."""
        value = self._value(names)
        if not isinstance(value, str):
            raise self._expression.error(f"yields {value!r}, expected a string")
        return value

    def value(self, names: Names) -> int | bool:
        """The value, int or bool as it came. Raises TemplateError for anything else."""
        value = self._value(names)
        if not isinstance(value, int):
            raise self._expression.error(f"yields {value!r}, expected a whole number or true/false")
        return value

    def _value(self, names: Names) -> Evaluated:
        try:
            return self._closure(names)
        except KeyError as error:
            raise self._expression.error(f"uses {error.args[0]!r}, which is not known here") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._expression.error(f"raises {type(error).__name__}: {error}") from None


class Expression:
    """One parsed expression. `where` is the path and dotted key that error messages name."""

    __slots__ = ("_node", "names", "text", "where")

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        try:
            parser = Parser(Environment(autoescape=False), text, state="variable")  # noqa: S701 - no HTML here
            self._node = parser.parse_expression()
            if not parser.stream.eos:
                raise self.error(f"has something left over at {parser.stream.current.value!r}")
            self.names = frozenset(_names_in(self._node))
            _compile(self._node, {})
        except TemplateSyntaxError as error:
            raise self.error(f"does not parse: {error.message}") from None
        except _Unsupported as error:
            raise self.error(str(error)) from None
        except RecursionError:
            raise self.error("is nested too deeply") from None

    def bind(self, known: Names) -> Bound:
        """The expression with `known` folded into it."""
        return Bound(self, _run(_compile(self._node, known)))

    def error(self, what: str) -> TemplateError:
        """A TemplateError that names this expression and where it stands."""
        return TemplateError(f"{self.where}: expression {self.text!r} {what}")
