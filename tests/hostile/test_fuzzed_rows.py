"""Databases with any value in any column: each command answers, or says in a line why not, and soon."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fork_server import ForkServer
from tests.unit.store.test_migrations import DATA as DATABASES

from .attack import attacked
from .rows import DEEP

NULL = ("--templates", "families", "--device", "null", "--db", "hurt.db")
COMMANDS = (
    ("trials", "--all", "--json", "--db", "hurt.db"),
    ("best", "--db", "hurt.db"),
    ("why", "small.one", "--db", "hurt.db"),
    ("importance", "small.one", "--db", "hurt.db"),
    ("history", "small", "--db", "hurt.db"),
    ("export", "small.one", "--out", "exported", "--no-proof", "--db", "hurt.db"),
    ("dump", "all.jsonl", "--db", "hurt.db"),
    ("merge", "hurt.db", "--db", "good.db"),
    ("retime", "small", *NULL),
    ("tune", "small.toml", "--trials", "11", *NULL),
)
CODES = (0, 1, 3)
"""done, refused in a line, a winner is not what it was"""
WORDS = (
    *("", "x", "\0", "\x1b[2J", "\u202e", "'\"; --", "../../x", "NaN", "-1", "1e999", "9" * 5000, "a" * 100_000),
    *("null", "true", "7", '"x"', "[]", "{}", "[1]", "[1e999]", '{"threads": 64}', '{"threads": {}}', DEEP),
    *('{"stages": [{}]}', '{"a": 99999999999999999999}', "[1.5, -1]", "[params]", "params = 7", "cuda", "correct"),
    *("running", "2026-02-31T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"),
)
VALUES = (
    st.none()
    | st.sampled_from((0, 1, -1, 2, 7, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)))
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.binary(max_size=20)
)
"""Of every type of SQLite."""
HOWS = ("?", "?", "CAST(CAST(? AS BLOB) AS TEXT)", "CAST(? AS BLOB)", "(SELECT max(rowid) FROM {table})")
"""What becomes of a value: text that is not UTF-8 comes of bytes, another row's id of none."""


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[int, int, int, str, object]]:
    """Which column of all, which of its rows, how the value is put there, and the value."""
    number = st.integers(0, 10_000)
    change = st.tuples(number, number, number, st.sampled_from(HOWS), VALUES)
    return draw(st.lists(change, min_size=1, max_size=8))


def hurt(path: Path, wanted: list[tuple[int, int, int, str, object]]) -> list[str]:
    """Put the values in, one to a row; what was changed. Those that UNIQUE or NOT NULL keeps out stay out."""
    done: dict[tuple[str, int], str] = {}
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        named = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        tables = [name for (name,) in raw.execute(named) if not name.startswith("sqlite_")]
        filled = [table for table in tables if raw.execute(f"SELECT 1 FROM {table}").fetchone()]
        for which, column, row, how, value in wanted:
            table = filled[which % len(filled)]
            columns = [name for _, name, *_ in raw.execute(f"PRAGMA table_info({table})")]
            ids = [number for (number,) in raw.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
            name, number = columns[column % len(columns)], ids[row % len(ids)]
            put = how.format(table=table)
            if (table, number) in done:
                continue
            with suppress(sqlite3.IntegrityError):
                values = (value, number) if "?" in put else (number,)
                raw.execute(f"UPDATE {table} SET {name} = {put} WHERE rowid = ?", values)
                done[table, number] = f"{table}.{name} of row {number} = {put}, {value!r:.80}"
    return list(done.values())


@pytest.fixture
def good(filled: Path, fork_server: ForkServer) -> Path:
    """A folder with good.db, in which most tables have rows."""
    folder = filled.parent
    filled.rename(folder / "good.db")
    (folder / "old.db").write_bytes(gzip.decompress((DATABASES / "0009.db.gz").read_bytes()))
    assert attacked(fork_server, folder, "merge", "old.db", "--db", "good.db").code == 0
    (folder / "whole").mkdir()
    shutil.copy(folder / "good.db", folder / "whole")
    return folder


def tried(folder: Path, fork_server: ForkServer, wanted: list[tuple[int, int, int, str, object]]) -> None:
    """Ask each command about a database that was hurt."""
    for left in folder.glob("*.db*"):
        left.unlink()
    for name in ("good.db", "hurt.db"):
        shutil.copy(folder / "whole" / "good.db", folder / name)
    done = hurt(folder / "hurt.db", wanted)
    for words in COMMANDS:
        shutil.rmtree(folder / "exported", ignore_errors=True)
        (folder / "all.jsonl").unlink(missing_ok=True)
        before = (folder / "good.db").read_bytes()
        try:
            ended = attacked(fork_server, folder, *words)
            assert ended.code in CODES, ended
            beside = ("device ", "autotune: note: ")
            said = [line for line in ended.err.splitlines() if line.startswith("autotune: ")]
            said = [line for line in said if not line.startswith(beside)]
            assert len(said) <= 1, ended.err
            assert "a row cannot be understood" not in ended.err, "it was met, not found"
            assert ended.code == 0 or ended.err, "it says why"
            assert words[0] != "merge" or ended.code == 0 or (folder / "good.db").read_bytes() == before
        except AssertionError as error:
            error.add_note(f"{' '.join(words)}: {'; '.join(done)}")
            raise


def fuzzed(folder: Path, fork_server: ForkServer, examples: int, *, same: bool) -> None:
    """Try so many databases, the same ones in every run if asked for."""
    quiet, phases = list(HealthCheck), [Phase.generate]  # to shrink what fails would take very long

    @settings(
        max_examples=examples,
        derandomize=same,
        deadline=None,
        database=None,
        suppress_health_check=quiet,
        phases=phases,
    )
    @given(changes())
    def attempt(wanted: list[tuple[int, int, int, str, object]]) -> None:
        tried(folder, fork_server, wanted)

    attempt()


def test_any_value_is_answered_or_refused(good: Path, fork_server: ForkServer) -> None:
    fuzzed(good, fork_server, 4, same=True)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a value of 200 kB
def test_many_values_are_answered_or_refused(good: Path, fork_server: ForkServer) -> None:
    fuzzed(good, fork_server, 200, same=False)
