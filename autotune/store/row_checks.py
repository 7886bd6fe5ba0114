"""What a row may hold, for every table: types, ranges, dates, JSON of the records' shapes. Said in SQL, run by SQLite.

`load` and `merge` refuse a file with a row that is none, `dump --check` lists such rows, and whoever meets one while
reading does without it (`reading`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from autotune.errors import StudyError, TemplateError
from autotune.printable import one_line
from autotune.store.column_types import EARLIEST, LARGEST, LATEST, Text, date_text, metadata
from autotune.store.layers import PROBLEM_COLUMNS, stored_problem
from autotune.store.packed import unpacked
from autotune.store.sources import check_launches
from autotune.store.sqlite.hidden_rows import Fault
from autotune.store.templates import header_params
from autotune.trial import ACCURACY_CLASSES, Outcome

WIDE = {"layers.flops", "layers.minimal_bytes", "studies.seed"}
"""integers of any size that SQLite has"""

_OURS = (StudyError, TemplateError)
_KEPT = 4096  # texts of launches whose check is remembered
_SHOWN = 60  # characters of a value in a reason
_MOST = "1.7976931348623157e308"  # the largest finite number


@dataclass(frozen=True, slots=True)
class _Rule:
    """When a row is none, in SQL, and what was expected."""

    bad: str
    expected: str
    column: str = ""
    """the column whose value the reason shows; empty for a rule about several"""


_PLAIN = "'integer', 'real', 'true', 'false', 'text'"
_NUMBER = "'integer', 'real'"
_JSON = {
    # of the columns that hold JSON: what it is, the kinds of its elements, the same in words
    "trials.config": ("object", _PLAIN, "a JSON object of numbers, words and flags"),
    "runs.attributes": ("object", "'text'", "a JSON object of words"),
    "measurements.samples_us": ("array", _NUMBER, "a JSON array of finite numbers"),
    "measurements.sm_clocks_mhz": ("array", _NUMBER, "a JSON array of finite numbers"),
    "profiles.stalls": ("object", _NUMBER, "a JSON object of finite numbers"),
    "sources.entries": ("array", "'text'", "a JSON array of words"),
    "sources.flags": ("array", "'text'", "a JSON array of words"),
    "subjects.params": ("object", "'array'", "a JSON object of arrays"),
    "dispatchers.record": ("object", "'array', 'object'", "a JSON object of tables and lists"),
}
_BEGINS = {"object": "{", "array": "["}
_DOUBTFUL_ATOMS = {
    # kinds of elements: what those alone do not have. An array, an object and null have no atom, true is the atom 1.
    _PLAIN: f"atom IS NULL OR atom < -{LARGEST} OR (atom > {LARGEST} AND atom < '')",
    _NUMBER: f"(atom BETWEEN -{LARGEST} AND {LARGEST}) IS NOT TRUE OR type = 'true' OR type = 'false'",
    "'text'": "(atom >= '') IS NOT TRUE",
}
_WORDS = {
    "trials.outcome": tuple(map(str, Outcome)),
    **{f"{table}.accuracy": ("", *ACCURACY_CLASSES) for table in ("trials", "sources")},
    "subjects.kind": ("layer", "layers", "space"),
    "verdicts.verdict": ("win", "tie", "loss"),
    "measurements.launch": ("stream", "graph"),
    "retimes.label": ("confirmed", "moved", "regressed", "failed", "remeasured"),
    "dispatched_layers.role": ("tuned", "held out"),
    **{f"{table}.origin": ("measured", "imported") for table in ("trials", "finals", "noise_floors", "rates")},
}
_POSITIVE = {"measurements.median_us", "trials.median_us", "trials.ranked_us", "rates.per_s", "retimes.before_us"}
_TOGETHER = {
    # rules about several columns, as the tables' CHECKs have them
    "trials": (
        _Rule("(outcome = 'running') <> (ended_at IS NULL)", "what runs has not ended, all else has"),
        _Rule("outcome <> 'correct' AND (median_us IS NOT NULL OR ranked_us IS NOT NULL)", "only correct trials rank"),
    ),
    "subjects": (
        _Rule("(kind = 'layer') <> (layer_id IS NOT NULL)", "a layer, and nothing else, has a layer_id"),
        _Rule("(kind = 'space') <> (name IS NOT NULL)", "a space, and nothing else, has a name"),
        _Rule("(kind = 'space') <> (params IS NOT NULL)", "a space, and nothing else, has params"),
    ),
    "retimes": (_Rule("(label = 'failed') <> (after_us IS NULL)", "a failure, and nothing else, has no time"),),
    "layers": (_Rule(f"is_problem({', '.join(PROBLEM_COLUMNS)}) = 0", "a problem of its operation"),),
    "templates": (_Rule("is_header(header) = 0", "a family's header, TOML", "header"),),
    "sources": (_Rule("is_launches(launches) = 0", "how a kernel is launched, JSON", "launches"),),
}
_TEXTS = _Rule(
    "text_bytes <> 0 AND length(text_zlib) > 0 AND is_text(text_zlib, text_bytes) = 0",
    "a kernel's text, packed with zlib",
)
_TWICE = {
    # beside UNIQUE and PRIMARY KEY: what the partial indexes of the schema keep apart
    "measurements": (
        ("trial_id", "finals_id IS NULL AND retime_id IS NULL"),
        ("retime_id", "retime_id IS NOT NULL"),
    ),
    "study_layers": (("study_id, name", "position IS NOT NULL"),),
}


def faulty_rows(connection: Connection, *, texts: bool = True) -> Iterator[Fault]:
    """Every row that cannot be understood, parents first, and those that refer to such a row or to none.

    The connection reads the file's own tables. Without `texts`, packed texts of kernels are not unpacked: a wrong one
    costs its kernel alone.
    """
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - it is open
    for name, function in _FUNCTIONS.items():
        raw.create_function(name, -1, function, deterministic=True)
    wrong = {table.name: list(_wrong(connection, table, texts=texts)) for table in metadata.sorted_tables}
    wrong["trials"] += _unmeasured(connection, [fault.row for fault in wrong["measurements"]])
    gone: dict[str, set[int]] = {}
    for table in metadata.sorted_tables:
        gone[table.name] = set()
        for fault in (*wrong[table.name], *_dangling(connection, table, gone)):
            if fault.row not in gone[table.name]:
                gone[table.name].add(fault.row)
                yield fault


def _unmeasured(connection: Connection, rows: Sequence[int]) -> Iterator[Fault]:
    """The trials whose own measurement is one of these rows."""
    own = f"rowid IN ({', '.join(map(str, rows))}) AND finals_id IS NULL AND retime_id IS NULL"
    sql = f"SELECT trial_id, rowid FROM measurements WHERE {own} AND typeof(trial_id) = 'integer'"  # noqa: S608
    for trial, row in connection.exec_driver_sql(sql):
        yield Fault("trials", trial, f"its measurement, row {row} of measurements, cannot be understood")


def repeated_rows(connection: Connection) -> Iterator[Fault]:
    """Rows whose identity an earlier row of their table has."""
    for table in metadata.sorted_tables:
        unique = [", ".join(columns) for columns in _identities(table)]
        for columns, only in (*((columns, "1") for columns in unique), *_TWICE.get(table.name, ())):
            some = " AND ".join(f"{column} IS NOT NULL" for column in columns.split(", "))
            sql = f"SELECT max(rowid) FROM {table.name} WHERE {only} AND {some} GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608
            for (row,) in connection.exec_driver_sql(sql):
                yield Fault(table.name, row, f"another row has its {columns}")


def _identities(table: Table) -> Iterator[Sequence[str]]:
    for constraint in table.constraints:
        if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            yield [column.name for column in constraint.columns]
    for column in table.columns:
        if column.unique:
            yield [column.name]


def _wrong(connection: Connection, table: Table, *, texts: bool) -> Iterator[Fault]:
    """The rows of a table that break one of its rules, each with the first."""
    rules = tuple(_rules(table, texts=texts))
    reasons = " ".join(f"WHEN {rule.bad} THEN {_reason(rule)}" for rule in rules)
    some = " OR ".join(f"({rule.bad})" for rule in rules)  # once more: to ask for a reason takes a third longer
    wrong = f"CASE WHEN {_sure(table, texts=texts)} THEN 0 WHEN {some} THEN 1 END"  # WHEN stops at what decides
    sql = f"SELECT rowid, CASE {reasons} END FROM {table.name} WHERE {wrong}"  # noqa: S608
    for row, reason in connection.exec_driver_sql(sql):
        yield Fault(table.name, row, one_line(reason))


def _sure(table: Table, *, texts: bool) -> str:
    """What a row can meet only if it breaks no rule, found out in half the time; the rules decide about all others.

    A + before a column has its value compared as it is stored, whatever type the file declares: numbers are less than
    texts, and texts less than bytes.
    """
    whole, written, sure = [], [], []
    for column in table.columns:
        name, kind, path = column.name, column.type, f"{table.name}.{column.name}"
        if isinstance(kind, Boolean) or (isinstance(kind, Integer) and path not in WIDE):
            whole.append(f"coalesce({name}, 0)" if column.nullable else f"+{name}")
            sure.append(f"{whole[-1]} BETWEEN 0 AND {1 if isinstance(kind, Boolean) else LARGEST}")
            continue
        if isinstance(kind, Float):
            above = f"+{name} > 0" if path in _POSITIVE else f"+{name} >= -{_MOST}"
            surely = f"{above} AND +{name} <= {_MOST}"
        elif isinstance(kind, Text):
            written.append(f"coalesce({name}, '')")
            surely = _surely_text(path, name)
        else:
            surely = _kept(_column_rules(table, column))
        sure.append(f"({name} IS NULL OR ({surely}))" if column.nullable else surely)
    if whole:
        sure.append(f"typeof({' + '.join(whole)}) = 'integer'")  # one real number would make the sum real
    if written:
        sure.append(f"is_ascii(CAST({' || '.join(written)} AS BLOB))")
    return " AND ".join((*sure, _kept(_row_rules(table, texts=texts))))


def _surely_text(path: str, name: str) -> str:
    """The same of a text, if it is ASCII without NUL."""
    if name.endswith("_at"):
        return f"+{name} BETWEEN '{date_text(EARLIEST)}' AND '{date_text(LATEST)}' AND {_is_soon_a_date(name)}"
    if path in _WORDS:
        return f"+{name} IN ({', '.join(map(repr, _WORDS[path]))})"
    surely = f"+{name} >= '' AND +{name} < x''"
    if path not in _JSON:
        return surely
    kind, elements, _ = _JSON[path]
    if elements not in _DOUBTFUL_ATOMS:
        return f"{surely} AND {_kept(_json_rules(path, name))}"
    sound = f"NOT EXISTS (SELECT 1 FROM json_each({name}) WHERE {_DOUBTFUL_ATOMS[elements]})"  # noqa: S608
    return f"{surely} AND substr({name}, 1, 1) = '{_BEGINS[kind]}' AND json_valid({name}) AND {sound}"


def _kept(rules: Iterable[_Rule]) -> str:
    """Whether no rule is broken."""
    return " AND ".join(("1", *(f"NOT ({rule.bad})" for rule in rules)))


def _reason(rule: _Rule) -> str:
    """Why a row is none, in SQL."""
    quoted = f"CAST(substr(quote({rule.column}), 1, {_SHOWN}) AS BLOB)"
    shown = "" if not rule.column else f"'{rule.column} = ' || legible({quoted}) || ': ' || "
    expected = rule.expected.replace("'", "''")
    return f"{shown}'expected {expected}'"


def _dangling(connection: Connection, table: Table, gone: dict[str, set[int]]) -> Iterator[Fault]:
    """The rows of a table that refer to a row that is not there, or that cannot be understood."""
    for key in sorted(table.foreign_keys, key=lambda key: key.parent.name):
        column, parent = key.parent.name, key.column.table.name
        without = ", ".join(map(str, sorted(gone[parent])))
        sql = (
            f"SELECT rowid, {column} FROM {table.name} WHERE {column} IN ({without}) "  # noqa: S608
            f"OR ({column} IS NOT NULL AND {column} NOT IN (SELECT {key.column.name} FROM {parent}))"
        )
        for row, target in connection.exec_driver_sql(sql):
            yield Fault(table.name, row, f"{column} = {target}: {parent} has no such row")


def _rules(table: Table, *, texts: bool) -> Iterator[_Rule]:
    """The rules of a table; those of one column's type come before those of its content."""
    for column in table.columns:
        yield from _column_rules(table, column)
    written = [column.name for column in table.columns if not isinstance(column.type, Integer | Float | LargeBinary)]
    whole = " || ' ' || ".join(f"coalesce({name}, '')" for name in written)  # apart: two halves of a letter are none
    if written:
        yield _Rule(f"is_utf8(CAST({whole} AS BLOB)) = 0", "text in UTF-8")
    yield from _row_rules(table, texts=texts)


def _column_rules(table: Table, column: Column[object]) -> Iterator[_Rule]:
    null = "" if not column.nullable else ", 'null'"
    name, kind = column.name, column.type
    if isinstance(kind, Boolean):
        yield _Rule(f"typeof({name}) <> 'integer' OR {name} NOT IN (0, 1)", "0 or 1", name)
    elif isinstance(kind, Integer):
        yield _Rule(f"typeof({name}) NOT IN ('integer'{null})", "a whole number", name)
        if f"{table.name}.{name}" not in WIDE:
            yield _Rule(f"{name} NOT BETWEEN 0 AND {LARGEST}", "a whole number from 0 to 2^53", name)
    elif isinstance(kind, Float):
        yield _Rule(f"typeof({name}) NOT IN ('real', 'integer'{null})", "a number", name)
        yield _Rule(f"abs({name}) > {_MOST}", "a finite number", name)
        if f"{table.name}.{name}" in _POSITIVE:
            yield _Rule(f"{name} <= 0", "a number above 0", name)
    elif isinstance(kind, LargeBinary):
        yield _Rule(f"typeof({name}) <> 'blob'", "bytes", name)
    else:
        yield _Rule(f"typeof({name}) NOT IN ('text'{null})", "text", name)
        yield from _text_rules(f"{table.name}.{name}", name)


def _row_rules(table: Table, *, texts: bool) -> Iterator[_Rule]:
    """Those that are about several columns, or take a function of Python's."""
    yield from _TOGETHER.get(table.name, ())
    if texts and table.name == "sources":
        yield _TEXTS


def _text_rules(path: str, name: str) -> Iterator[_Rule]:
    if name.endswith("_at") or path in _JSON:
        # SQLite reads a text up to its first NUL, Python all of it.
        yield _Rule(f"instr({name}, char(0))", "text without NUL", name)
    if name.endswith("_at"):
        seconds, rest = f"substr({name}, 1, 19)", f"substr({name}, 20)"
        yield _Rule(
            f"NOT ({_is_soon_a_date(name)}) "
            f"AND (strftime('%Y-%m-%dT%H:%M:%S', {seconds}, '+0 days') IS NOT {seconds} "
            f"OR ({rest} <> 'Z' AND {rest} NOT GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]Z')) "
            f"OR {name} NOT BETWEEN '{date_text(EARLIEST)}' AND '{date_text(LATEST)}'",
            "a date such as 2026-11-20T14:00:00.000000Z",
            name,
        )
    if path in _WORDS:
        words = ", ".join(f"'{word}'" for word in _WORDS[path])
        yield _Rule(f"{name} NOT IN ({words})", f"one of {words.replace(chr(39), '')}", name)
    if path in _JSON:
        yield from _json_rules(path, name)


def _json_rules(path: str, name: str) -> Iterator[_Rule]:
    kind, elements, expected = _JSON[path]
    yield _Rule(f"{name} IS NOT NULL AND json_valid({name}) = 0", expected, name)
    # or with a space; JSON is read for those alone
    yield _Rule(f"substr({name}, 1, 1) <> '{_BEGINS[kind]}' AND json_type({name}) <> '{kind}'", expected, name)
    # A whole number that SQLite cannot keep is a real one to it.
    odd = (
        f"type NOT IN ({elements}) OR (type = 'integer' AND typeof(value) <> 'integer') "
        f"OR (type = 'real' AND abs(value) > {_MOST})"
    )
    yield _Rule(f"EXISTS (SELECT 1 FROM json_each({name}) WHERE {odd})", expected, name)  # noqa: S608


def _is_soon_a_date(name: str) -> str:
    """Whether a text is the date of one of the days that each month has: twice as fast as to make a date of it."""
    day, digits = "[0-9][0-9][0-9][0-9]-[01][0-9]-[0-2][0-9]", "[0-9]" * 6
    within = ((6, "01", "12"), (9, "01", "28"), (12, "00", "23"))
    ranges = " AND ".join(f"substr({name}, {at}, 2) BETWEEN '{first}' AND '{last}'" for at, first, last in within)
    return f"{name} GLOB '{day}T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].{digits}Z' AND {ranges}"


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


def _is_ascii(content: bytes) -> int:
    """Whether bytes are ASCII without NUL."""
    return content.isascii() and b"\0" not in content


_FUNCTIONS: dict[str, Callable[..., int | str]] = {
    "legible": _legible,
    "is_problem": _flag(stored_problem),
    "is_header": _flag(header_params),
    "is_launches": lru_cache(_KEPT)(_flag(check_launches)),
    "is_text": _flag(unpacked),
    "is_utf8": _flag(_check_utf8),
    "is_ascii": _is_ascii,
}
