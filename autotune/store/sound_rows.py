"""Rows that surely break no rule, found out in half the time of the rules, which decide about all others. SQL, too."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sqlalchemy import Boolean, Column, Float, Integer, Table

from autotune.store.column_types import LARGEST, Text, date_of, date_text
from autotune.store.configs import DIGITS, LONG, surely_plain
from autotune.store.row_rules import (
    JSON,
    MEASURED,
    NUMBER,
    PLAIN,
    WIDE,
    WORDS,
    Rule,
    column_rules,
    json_rules,
    kept,
    row_rules,
)
from autotune.trial import LEAST, MOST

_FORM = b"0000-00-00T00:00:00.000000Z"
_KEPT = 4096  # minutes whose check is remembered


class _Sound:
    """What a row of a table must meet, made column by column.

    Values are compared as they are stored, whatever type the file declares: numbers are less than texts, and texts
    less than bytes.
    """

    def __init__(self) -> None:
        self.numbers, self.whole, self.texts, self.more = (list[str]() for _ in range(4))
        self.dates, self.arrays, self.settings, self.others = (list[str]() for _ in range(4))

    def add(self, table: Table, column: Column[object]) -> None:
        """What a column must meet."""
        name, kind, path = column.name, column.type, f"{table.name}.{column.name}"
        number = f"coalesce({name}, 0)" if column.nullable else name
        if isinstance(kind, Boolean) or (isinstance(kind, Integer) and path not in WIDE):
            self.whole.append(number)
            if isinstance(kind, Boolean):
                self.more.append(f"{number} <= 1")
        if isinstance(kind, Float) or number in self.whole:
            self.numbers.append(number)
            if path in MEASURED:
                self.more.append(f"coalesce({name}, 1) BETWEEN {LEAST} AND {MOST}")
        elif path in WORDS:
            self.more.append(f"+{name} IN ({', '.join(map(repr, WORDS[path]))})")
        elif isinstance(kind, Text):
            self._add_text(path, name, nullable=bool(column.nullable))
        else:
            self._add_kept(name, column_rules(table, column), nullable=bool(column.nullable))

    def _add_kept(self, name: str, rules: Iterable[Rule], *, nullable: bool) -> None:
        self.more.append(f"({name} IS NULL OR {kept(rules)})" if nullable else kept(rules))

    def _add_text(self, path: str, name: str, *, nullable: bool) -> None:
        kind, elements, _ = JSON.get(path, ("", "", ""))
        unless_null = f"coalesce({name}, '{'[]' if elements == NUMBER else ''}')" if nullable else name
        self.texts.append(unless_null)
        if name.endswith("_at"):
            self.dates.append(unless_null)
            self.more.append(f"coalesce(length({name}), {len(_FORM)}) = {len(_FORM)}")
        elif (kind, elements) == ("array", NUMBER):
            self.arrays.append(unless_null)
            self.more.append(f"substr({unless_null}, 1, 1) = '[' AND json_valid({unless_null})")
        elif (kind, elements) == ("object", PLAIN):
            self.settings.append(unless_null)
            self.more.append(f"json_valid({unless_null})")
        else:
            self.others.append(unless_null)
            if kind:
                self._add_kept(name, json_rules(path, name), nullable=nullable)

    def said(self) -> str:
        """All of it."""
        sound = []
        for least, below, values in (("0", f"<= {LARGEST}", self.numbers), ("''", "< x''", self.texts)):
            if values:
                among = ", ".join((least, *values))
                sound += [f"min({among}) = {least}", f"max({among}) {below}"]
        if self.whole:
            sound.append(f"typeof({' + '.join(self.whole)}) = 'integer'")  # one real number would make the sum real
        groups = (self.dates, self.arrays, self.settings, self.others)
        given = (f"ifnull(CAST({' || '.join(some)} AS BLOB), x'ff')" if some else "x''" for some in groups)
        return " AND ".join((*sound, *self.more, f"is_sound({', '.join(given)})"))


def surely_sound(table: Table, *, texts: bool) -> str:
    """What a row can meet only if it breaks no rule, in SQL that calls `is_sound`."""
    sound = _Sound()
    for column in table.columns:
        sound.add(table, column)
    return f"{sound.said()} AND {kept(row_rules(table, texts=texts))}"


def is_sound(dates: bytes, arrays: bytes, settings: bytes, others: bytes) -> bool:
    """Whether a row's texts are surely what they should be, given those of each kind behind one another.

    dates: each as long as one. arrays: each JSON that begins with a bracket. settings: one text at most, JSON.
    """
    if not others.isascii() or b"\0" in others:
        return False
    if dates:
        if dates.translate(DIGITS) != _FORM * (len(dates) // len(_FORM)):
            return False
        for at in range(0, len(dates), len(_FORM)):
            if dates[at + 17] > ord("5") or not _is_minute(dates[at : at + 16]):
                return False
    if arrays:  # of nothing but numbers, without an exponent
        zeros = arrays.translate(DIGITS)
        if LONG in zeros or zeros.translate(None, b"0,.-").replace(b"[]", b""):
            return False
    return not settings or surely_plain(settings)


@lru_cache(_KEPT)
def _is_minute(text: bytes) -> bool:
    """Whether all seconds of a minute are dates."""
    first, last = (f"{text.decode()}:{seconds}Z" for seconds in ("00.000000", "59.999999"))
    try:
        return date_text(date_of(first)) == first and date_of(first) < date_of(last)
    except ValueError:
        return False
