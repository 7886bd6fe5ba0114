"""Expressions as the tables of a file declare them: their names and words are known there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType

from autotune.errors import quoted
from autotune.expressions.expression import Bound, Expression
from autotune.toml_table import Table, did_you_mean


def never_words(expression: Expression, words: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with an expression that compares an enumeration with what is no word of it; empty if nothing is."""
    for name, word in expression.compared:
        if word not in words.get(name, (word,)):
            near = did_you_mean(word, words[name])
            return f"{name} is never {word!r}{near} in {expression.text!r}; it is one of {', '.join(words[name])}"
    return ""


def expression_of(
    table: Table, key: str, text: str, known: Set[str], words: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Bound:
    """An expression that stands under a key of a table.

    Raises the table's error for a name that is not known there, and for a word that none of `words` ever is.
    """
    expression = Expression(text, f"{table.file}: {table.path(key)}")
    for name in sorted(expression.names - known):
        below = "; sizes are derived from those above them" if name in table and name != key else ""
        raise table.error(key, f"undeclared name {quoted(name)} in {quoted(text)}{below or did_you_mean(name, known)}")
    if never := never_words(expression, words):
        raise table.error(key, never)
    return expression.bind({})
