"""Expressions in a template's header, parsed once as Jinja expressions and compiled to plain closures.

A Jinja call costs about 9 us, and a space has 100,000 configs. `Expression.bind` therefore folds in the values known
from the problem and the device, and the rest of the parsed tree becomes nested Python closures: one that evaluates a
single config, and one that evaluates columns of many configs at once. Only a whitelist of nodes is allowed: no
attributes except `device.NAME`, no subscripts, no calls except FUNCTIONS.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.parser import Parser

from autotune.errors import TemplateError, shortened
from autotune.expressions.functions import FUNCTIONS, ON_VALUES, Evaluated
from autotune.trial import Value

if TYPE_CHECKING:
    from autotune.expressions.vectorized import Column, Columns, Operand

Names = Mapping[str, Value]

_SHOWN = 400  # maximum number of characters of an expression, and of its error, in a message

_BINARY: Mapping[type[nodes.BinExpr], str] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
    nodes.Pow: "**",
}


@dataclass(frozen=True, slots=True)
class Known:
    """A subtree whose value is constant."""

    value: Evaluated


@dataclass(frozen=True, slots=True)
class Name:
    """A name whose value is looked up."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on the values of subtrees."""

    operation: str
    arguments: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Logic:
    """`or` (stops at true) or `and` (stops at false). The second value is evaluated only if it decides."""

    stops_at: bool
    left: Tree
    right: Tree


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice between two subtrees. Only the chosen one is evaluated."""

    test: Tree
    then: Tree
    otherwise: Tree


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple of values."""

    items: tuple[Tree, ...]


Tree = Known | Name | Apply | Logic | Choice | Items
_Closure = Callable[[Names], Evaluated]
_ColumnClosure: TypeAlias = "Callable[[Columns], Operand]"


class _Unsupported(Exception):
    """A parsed node that expressions do not support."""


def _fold(node: nodes.Expr, known: Names) -> Tree:
    """Fold everything in a parsed expression that `known` determines."""
    match node:
        case nodes.Const():
            return Known(node.value)
        case nodes.Tuple() | nodes.List():
            items = tuple(_fold(item, known) for item in node.items)
            if all(isinstance(item, Known) for item in items):
                return Known(tuple(item.value for item in items if isinstance(item, Known)))  # type: ignore[misc]
            return Items(items)
        case nodes.Name() | nodes.Getattr():
            name = _name(node)
            return Known(known[name]) if name in known else Name(name)
        case nodes.BinExpr() if isinstance(node, (nodes.And, nodes.Or)):
            return _logic(isinstance(node, nodes.Or), _fold(node.left, known), _fold(node.right, known))
        case nodes.BinExpr() if type(node) in _BINARY:
            return apply(_BINARY[type(node)], _fold(node.left, known), _fold(node.right, known))
        case nodes.Not():
            return apply("not", _fold(node.node, known))
        case nodes.Neg():
            return apply("neg", _fold(node.node, known))
        case nodes.Compare():
            return _fold_compare(node, known)
        case nodes.CondExpr() if node.expr2 is not None:
            test = _fold(node.test, known)
            if isinstance(test, Known):
                return _fold(node.expr1 if test.value else node.expr2, known)
            return Choice(test, _fold(node.expr1, known), _fold(node.expr2, known))
        case nodes.Call() if isinstance(node.node, nodes.Name) and not (
            node.kwargs or node.dyn_args or node.dyn_kwargs
        ):
            if node.node.name not in FUNCTIONS:
                raise _Unsupported(
                    f"has {node.node.name}(), which does not exist; there are {', '.join(sorted(FUNCTIONS))}"
                )
            return apply(node.node.name, *(_fold(argument, known) for argument in node.args))
    if isinstance(node, nodes.Div):
        raise _Unsupported("has /, which yields a fraction; use // or ceil_div")
    raise _Unsupported(f"{type(node).__name__} is not part of expressions")


def apply(operation: str, *arguments: Tree) -> Tree:
    """Apply an operation to subtrees, folding the result if their values are known."""
    if all(isinstance(argument, Known) for argument in arguments):
        values = [argument.value for argument in arguments if isinstance(argument, Known)]
        try:
            return Known(ON_VALUES[operation](*values))
        except (ArithmeticError, TypeError, ValueError):
            pass  # the error is raised on evaluation, so that a branch that is never taken never fails
    return Apply(operation, arguments)


def words_of(tree: Tree) -> Iterator[str]:
    """Yield the words to which a tree may evaluate, if they are literals in the tree."""
    match tree:
        case Known(str(word)):
            yield word
        case Choice(_, then, otherwise):
            yield from words_of(then)
            yield from words_of(otherwise)


def _logic(stops_at: bool, left: Tree, right: Tree) -> Tree:  # noqa: FBT001 - `or` or `and`
    if isinstance(left, Known):
        return left if bool(left.value) == stops_at else right
    return Logic(stops_at, left, right)


def _fold_compare(node: nodes.Compare, known: Names) -> Tree:
    """Fold a comparison. A chain `a < b < c` becomes `a < b and b < c`."""
    left, links = _fold(node.expr, known), []
    for operand in node.ops:
        right = _fold(operand.expr, known)
        links.append(apply(operand.op, left, right))
        left = right
    return functools.reduce(partial(_logic, False), links)  # noqa: FBT003


def _closure(tree: Tree) -> _Closure:
    """Compile a tree to a function from a config's values, by name, to the tree's value."""
    match tree:
        case Known(value):
            return lambda _: value
        case Name(name):
            return lambda names: names[name]
        case Apply(operation, arguments):
            function, closures = ON_VALUES[operation], [_closure(argument) for argument in arguments]
            if len(closures) == 2:
                one, other = closures
                return lambda names: function(one(names), other(names))
            if len(closures) == 1:
                only = closures[0]
                return lambda names: function(only(names))
            return lambda names: function(*(closure(names) for closure in closures))
        case Logic(stops_at, left, right):
            first, second = _closure(left), _closure(right)
            if stops_at:
                return lambda names: first(names) or second(names)
            return lambda names: first(names) and second(names)
        case Choice(test, then, otherwise):
            decide, yes, no = _closure(test), _closure(then), _closure(otherwise)
            return lambda names: yes(names) if decide(names) else no(names)
        case Items(items):
            parts = [_closure(item) for item in items]
            return lambda names: tuple(part(names) for part in parts)  # type: ignore[misc]


def _column_closure(tree: Tree) -> _ColumnClosure:
    """Compile a tree to a function from the columns of many configs to the tree's value for each of them.

    A branch is evaluated only for the rows that take it. The function raises if evaluating a single row would raise,
    and if a column can't hold the values exactly.
    """
    from autotune.expressions.vectorized import OPERATIONS, chosen, of_rows, truth  # imports numpy, often unneeded

    match tree:
        case Known(value):
            return lambda _: value
        case Name(name):
            return lambda columns: columns[name]
        case Apply(operation, arguments):
            function, closures = OPERATIONS[operation], [_column_closure(argument) for argument in arguments]
            return lambda columns: function(*(closure(columns) for closure in closures))
        case Logic(stops_at, left, right):
            first, second = _column_closure(left), _column_closure(right)

            def logic(columns: Columns) -> Operand:
                value = first(columns)
                stops = truth(value) == stops_at
                return chosen(stops, columns, lambda _: of_rows(value, stops), second)

            return logic
        case Choice(test, then, otherwise):
            decide, yes, no = (_column_closure(part) for part in (test, then, otherwise))
            return lambda columns: chosen(truth(decide(columns)), columns, yes, no)
        case Items(items):
            parts = [_column_closure(item) for item in items]
            return lambda columns: tuple(part(columns) for part in parts)


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
    """An expression with some names' values folded in. Its methods take the values of the other names."""

    def __init__(self, expression: Expression, tree: Tree) -> None:
        self._expression = expression
        self._tree = tree

    @functools.cached_property
    def _closure(self) -> _Closure:
        return _closure(self._tree)

    @functools.cached_property
    def _column_closure(self) -> _ColumnClosure:
        return _column_closure(self._tree)

    @property
    def expression(self) -> Expression:
        """The original expression, without folded values."""
        return self._expression

    @property
    def names(self) -> frozenset[str]:
        """Every name in the expression's text."""
        return self._expression.names

    def integer(self, names: Names) -> int:
        """Evaluate to an int; true becomes 1. Raises TemplateError for any other value."""
        return int(self.value(names))

    def word(self, names: Names) -> str:
        """Evaluate to a string. Raises TemplateError for any other value."""
        value = self.any(names)
        if not isinstance(value, str):
            raise self._expression.error(f"yields {value!r}, expected a string")
        return value

    def value(self, names: Names) -> int | bool:
        """Evaluate to an int or bool. Raises TemplateError for any other value."""
        value = self.any(names)
        if not isinstance(value, int):
            raise self._expression.error(f"yields {value!r}, expected a whole number or true/false")
        return value

    def any(self, names: Names) -> Evaluated:
        """Evaluate to a value of any kind. Raises TemplateError if that fails."""
        try:
            return self._closure(names)
        except KeyError as error:
            raise self._expression.error(f"uses {error.args[0]!r}, which is not known here") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._expression.error(f"raises {type(error).__name__}: {error}") from None

    def column(self, columns: Columns) -> Column:
        """Evaluate every row of some columns to an int or bool. Raises TemplateError if a row does."""
        import numpy as np

        from autotune.expressions.vectorized import column_of, filled

        with contextlib.suppress(ArithmeticError, KeyError, TypeError, ValueError), np.errstate(divide="raise"):
            column = filled(self._column_closure(columns), columns.size)
            if column.dtype.kind in "bi":
                return column
        return column_of([self.value(columns.row(number, self.names)) for number in range(columns.size)])


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[nodes.Expr, frozenset[str]]:
    """Parse an expression, and return its tree, which must not be changed, and its names.

    The result is cached, because layers share families. Raises TemplateSyntaxError or _Unsupported.
    """
    parser = Parser(Environment(autoescape=False), text, state="variable")  # noqa: S701 - no HTML here
    node = parser.parse_expression()
    if not parser.stream.eos:
        rest = str(parser.stream.current.value)
        raise _Unsupported(f"has unexpected text at {rest!r}{'; write == to compare' if rest == '=' else ''}")
    names = frozenset(_names_in(node))
    _fold(node, {})
    return node, names


class Expression:
    """A parsed expression. `where` is the path and dotted key for error messages."""

    __slots__ = ("_node", "names", "text", "where")

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        try:
            self._node, self.names = _parse(text)
        except TemplateSyntaxError as error:
            why = (error.message or "").replace("'end of template'", "end")
            raise self.error(f"does not parse: {why}" if text.strip() else "is empty") from None
        except _Unsupported as error:
            raise self.error(str(error)) from None

    def compared(self) -> Iterator[tuple[str, str]]:
        """Yield each pair of a name and a word that are compared in the expression."""
        for compare in (self._node, *self._node.find_all(nodes.Compare)):
            if isinstance(compare, nodes.Compare) and isinstance(compare.expr, nodes.Name):
                for operand in compare.ops:
                    for const in (operand.expr, *operand.expr.find_all(nodes.Const)):
                        if isinstance(const, nodes.Const) and isinstance(const.value, str):
                            yield compare.expr.name, const.value

    def folded(self, known: Names) -> Tree:
        """Return the tree, folding in everything that `known` determines."""
        return _fold(self._node, known)

    def bind(self, known: Names) -> Bound:
        """Fold `known` into the expression, for evaluation with the values of the other names."""
        return Bound(self, self.folded(known))

    def error(self, what: str) -> TemplateError:
        """Return a TemplateError with this expression and its key."""
        return TemplateError(f"{self.where}: expression {shortened(self.text, _SHOWN)!r} {shortened(what, _SHOWN)}")
