"""What a row may hold, for every table: types, ranges, dates, JSON of the records' shapes. Said in SQL."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Boolean, Column, Float, Integer, LargeBinary, Table

from autotune.errors import StudyError, TemplateError
from autotune.store.column_types import EARLIEST, LARGEST, LATEST, date_text
from autotune.store.layers import PROBLEM_COLUMNS, stored_problem
from autotune.store.packed import unpacked
from autotune.store.sources import check_launches
from autotune.store.templates import header_params
from autotune.trial import ACCURACY_CLASSES, LEAST, MOST, Outcome

WIDE = {"layers.flops", "layers.minimal_bytes", "studies.seed"}
"""integers of any size that SQLite has"""

_OURS = (StudyError, TemplateError)
_KEPT = 4096  # texts of launches whose check is remembered
FINITE = "1.7976931348623157e308"  # the largest finite number


@dataclass(frozen=True, slots=True)
class Rule:
    """When a row is none, in SQL, and what was expected."""

    bad: str
    expected: str
    column: str = ""
    """the column whose value the reason shows; empty for a rule about several"""


PLAIN = "'integer', 'real', 'true', 'false', 'text'"
NUMBER = "'integer', 'real'"
JSON = {
    # of the columns that hold JSON: what it is, the kinds of its elements, the same in words
    "trials.config": ("object", PLAIN, "a JSON object of numbers, words and flags"),
    "runs.attributes": ("object", "'text'", "a JSON object of words"),
    "measurements.samples_us": ("array", NUMBER, "a JSON array of finite numbers"),
    "measurements.sm_clocks_mhz": ("array", NUMBER, "a JSON array of finite numbers"),
    "profiles.stalls": ("object", NUMBER, "a JSON object of finite numbers"),
    "sources.entries": ("array", "'text'", "a JSON array of words"),
    "sources.flags": ("array", "'text'", "a JSON array of words"),
    "subjects.params": ("object", "'array'", "a JSON object of arrays"),
    "dispatchers.record": ("object", "'array', 'object'", "a JSON object of tables and lists"),
}
_BEGINS = {"object": "{", "array": "["}
WORDS = {
    "trials.outcome": tuple(map(str, Outcome)),
    **{f"{table}.accuracy": ("", *ACCURACY_CLASSES) for table in ("trials", "sources")},
    "subjects.kind": ("layer", "layers", "space"),
    "verdicts.verdict": ("win", "tie", "loss"),
    "measurements.launch": ("stream", "graph"),
    "retimes.label": ("confirmed", "moved", "regressed", "failed", "remeasured"),
    "dispatched_layers.role": ("tuned", "held out"),
    **{f"{table}.origin": ("measured", "imported") for table in ("trials", "finals", "noise_floors", "rates")},
}
MEASURED = {
    *("measurements.median_us", "trials.median_us", "trials.ranked_us", "rates.per_s"),
    *("retimes.before_us", "retimes.after_us", "verdicts.median_us", "verdicts.against_us"),
}
_TOGETHER = {
    # rules about several columns, as the tables' CHECKs have them
    "trials": (
        Rule("(outcome = 'running') <> (ended_at IS NULL)", "what runs has not ended, all else has"),
        Rule("outcome <> 'correct' AND (median_us IS NOT NULL OR ranked_us IS NOT NULL)", "only correct trials rank"),
    ),
    "subjects": (
        Rule("(kind = 'layer') <> (layer_id IS NOT NULL)", "a layer, and nothing else, has a layer_id"),
        Rule("(kind = 'space') <> (name IS NOT NULL)", "a space, and nothing else, has a name"),
        Rule("(kind = 'space') <> (params IS NOT NULL)", "a space, and nothing else, has params"),
    ),
    "retimes": (Rule("(label = 'failed') <> (after_us IS NULL)", "a failure, and nothing else, has no time"),),
    "layers": (Rule(f"is_problem({', '.join(PROBLEM_COLUMNS)}) = 0", "a problem of its operation"),),
    "templates": (Rule("is_header(header) = 0", "a family's header, TOML", "header"),),
    "sources": (Rule("is_launches(launches) = 0", "how a kernel is launched, JSON", "launches"),),
}
_TEXTS = Rule(
    "text_bytes <> 0 AND length(text_zlib) > 0 AND is_text(text_zlib, text_bytes) = 0",
    "a kernel's text, packed with zlib",
)


def kept(rules: Iterable[Rule]) -> str:
    """Whether no rule is broken."""
    return " AND ".join(("1", *(f"NOT ({rule.bad})" for rule in rules)))


def rules_of(table: Table, *, texts: bool) -> Iterator[Rule]:
    """The rules of a table; those of one column's type come before those of its content."""
    for column in table.columns:
        yield from column_rules(table, column)
    written = [column.name for column in table.columns if not isinstance(column.type, Integer | Float | LargeBinary)]
    whole = " || ' ' || ".join(f"coalesce({name}, '')" for name in written)  # apart: two halves of a letter are none
    if written:
        yield Rule(f"is_utf8(CAST({whole} AS BLOB)) = 0", "text in UTF-8")
    yield from row_rules(table, texts=texts)


def column_rules(table: Table, column: Column[object]) -> Iterator[Rule]:
    null = "" if not column.nullable else ", 'null'"
    name, kind = column.name, column.type
    if isinstance(kind, Boolean):
        yield Rule(f"typeof({name}) <> 'integer' OR {name} NOT IN (0, 1)", "0 or 1", name)
    elif isinstance(kind, Integer):
        yield Rule(f"typeof({name}) NOT IN ('integer'{null})", "a whole number", name)
        if f"{table.name}.{name}" not in WIDE:
            yield Rule(f"{name} NOT BETWEEN 0 AND {LARGEST}", "a whole number from 0 to 2^53", name)
    elif isinstance(kind, Float):
        yield Rule(f"typeof({name}) NOT IN ('real', 'integer'{null})", "a number", name)
        yield Rule(f"abs({name}) > {FINITE}", "a finite number", name)
        if f"{table.name}.{name}" in MEASURED:
            yield Rule(f"{name} NOT BETWEEN {LEAST} AND {MOST}", f"a number from {LEAST} to {MOST}", name)
    elif isinstance(kind, LargeBinary):
        yield Rule(f"typeof({name}) <> 'blob'", "bytes", name)
    else:
        yield Rule(f"typeof({name}) NOT IN ('text'{null})", "text", name)
        yield from _text_rules(f"{table.name}.{name}", name)


def row_rules(table: Table, *, texts: bool) -> Iterator[Rule]:
    """Those that are about several columns, or take a function of Python's."""
    yield from _TOGETHER.get(table.name, ())
    if texts and table.name == "sources":
        yield _TEXTS


def _text_rules(path: str, name: str) -> Iterator[Rule]:
    if name.endswith("_at") or path in JSON:
        # SQLite reads a text up to its first NUL, Python all of it.
        yield Rule(f"instr({name}, char(0))", "text without NUL", name)
    if name.endswith("_at"):
        seconds, rest = f"substr({name}, 1, 19)", f"substr({name}, 20)"
        yield Rule(
            f"strftime('%Y-%m-%dT%H:%M:%S', {seconds}, '+0 days') IS NOT {seconds} "
            f"OR ({rest} <> 'Z' AND {rest} NOT GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]Z') "
            f"OR {name} NOT BETWEEN '{date_text(EARLIEST)}' AND '{date_text(LATEST)}'",
            "a date such as 2026-11-20T14:00:00.000000Z",
            name,
        )
    if path in WORDS:
        words = ", ".join(f"'{word}'" for word in WORDS[path])
        yield Rule(f"{name} NOT IN ({words})", f"one of {words.replace(chr(39), '')}", name)
    if path in JSON:
        yield from json_rules(path, name)


def json_rules(path: str, name: str) -> Iterator[Rule]:
    kind, elements, expected = JSON[path]
    yield Rule(f"{name} IS NOT NULL AND json_valid({name}) = 0", expected, name)
    # or with a space; JSON is read for those alone
    yield Rule(f"substr({name}, 1, 1) <> '{_BEGINS[kind]}' AND json_type({name}) <> '{kind}'", expected, name)
    # A whole number that SQLite cannot keep is a real one to it.
    odd = (
        f"type NOT IN ({elements}) OR (type = 'integer' AND typeof(value) <> 'integer') "
        f"OR (type = 'real' AND abs(value) > {FINITE})"
    )
    yield Rule(f"EXISTS (SELECT 1 FROM json_each({name}) WHERE {odd})", expected, name)  # noqa: S608


def _flag(test: Callable[..., object]) -> Callable[..., int]:
    """A test that raises what the records raise, as a function of SQL."""

    def flag(*values: object) -> int:
        try:
            test(*values)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, zlib.error, *_OURS):
            return 0
        return 1

    return flag


def _legible(content: bytes) -> str:
    """Text to be shown: the check of one that is not UTF-8 ends with its row."""
    return content.decode("utf-8", "replace")


def _check_utf8(content: bytes) -> None:
    content.decode()


FUNCTIONS: dict[str, Callable[..., int | str]] = {
    "legible": _legible,
    "is_problem": _flag(stored_problem),
    "is_header": _flag(header_params),
    "is_launches": lru_cache(_KEPT)(_flag(check_launches)),
    "is_text": _flag(unpacked),
    "is_utf8": _flag(_check_utf8),
}
