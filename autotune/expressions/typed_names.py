"""Read expressions from a file's tables, checking that their names and words are declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType

from autotune.errors import quoted
from autotune.expressions.expression import Apply, Choice, Expression, Known, Logic, Name, Tree
from autotune.expressions.functions import FUNCTIONS
from autotune.toml_table import Table, did_you_mean


def never_words(expression: Expression, words: Mapping[str, Sequence[str]]) -> str:
    """Return the error if an expression compares an enumeration with a word that it doesn't contain, or else ""."""
    if "'" not in expression.text and '"' not in expression.text:
        return ""
    for name, word in expression.compared():
        if word not in words.get(name, (word,)):
            near = did_you_mean(word, words[name])
            return f"{name} is never {word!r}{near} in {expression.text!r}; it is one of {', '.join(words[name])}"
    return ""


def number_names(numbers: Set[str], derived: Iterable[tuple[str, Expression]]) -> frozenset[str]:
    """Return these names, and the derived names whose expressions yield numbers."""
    names = set(numbers)
    for name, expression in derived:
        if _is_number(expression.folded({}), names):
            names.add(name)
    return frozenset(names)


def no_condition(expression: Expression, numbers: Set[str]) -> str:
    """Return the error if a condition yields a number, which would be true unless it is 0, or else ""."""
    if not _is_number(expression.folded({}), numbers):
        return ""
    text = quoted(expression.text)
    return (
        f"{text} is a number, and any number except 0 would count as true; compare it, such as ({expression.text}) == 0"
    )


def _is_number(tree: Tree, numbers: Set[str]) -> bool:
    """Return whether an expression's form shows that it yields a number."""
    match tree:
        case Known(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Name(name):
            return name in numbers
        case Apply(operation, _):
            return operation in _ARITHMETIC
        case Logic(_, one, other) | Choice(_, one, other):
            return _is_number(one, numbers) or _is_number(other, numbers)
    return False


_ARITHMETIC = frozenset(("+", "-", "*", "//", "%", "**", "neg", *FUNCTIONS)) - {"is_pow2"}


def expression_of(
    table: Table, key: str, value: object, known: Set[str], words: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Expression:
    """Parse the expression at one of a table's keys, where an integer or a boolean is fine too.

    Raises the table's error for any other value, for an unknown name, and for comparing one of `words` with a word that
    isn't among its values.
    """
    text = str(value).lower() if isinstance(value, bool | int) else value
    if not isinstance(text, str):
        raise table.error(key, f"expected an expression in quotes, got {value!r}")
    expression = Expression(text, f"{table.file}: {table.path(key)}")
    for name in sorted(expression.names - known):
        below = "; sizes are derived from those above them" if table.key == "derived" and name in table else ""
        raise table.error(key, f"undeclared name {quoted(name)} in {quoted(text)}{below or did_you_mean(name, known)}")
    if never := never_words(expression, words):
        raise table.error(key, never)
    return expression
