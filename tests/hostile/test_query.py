"""Statements without an end, and such as would fill the memory: they can be stopped, and hold little."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from pathlib import Path

import pytest

from autotune.errors import StoreError
from autotune.store import Store
from autotune.store.sqlite.query import MOST_VALUE_BYTES
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run

from .attack import attacked, refused

ENDLESS = "WITH RECURSIVE endless(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM endless)"
SILENT = f"{ENDLESS} SELECT count(*) FROM endless"
ROWS = f"{ENDLESS} SELECT n, hex(zeroblob(500)) AS long FROM endless"
GROUPED = f"{ENDLESS} SELECT group_concat(n) FROM endless"
ONE_CALL = "SELECT instr(printf('%.*c', 30000000, 'a'), printf('%.*c', 15000000, 'a') || 'b')"
"""one call of a function, which takes hours and which SQLite does not interrupt"""
LITTLE_BYTES = 300 << 20


def answering(run: ForkedRun) -> ForkedRun:
    """A run whose statement has begun: its steps are made in a thread of their own."""
    until = time.monotonic() + 5
    while len(os.listdir(f"/proc/{run.number}/task")) < 2 and time.monotonic() < until and not run.ended:
        time.sleep(0.01)
    assert not run.ended
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, *long_run((signal.SIGTERM,), (signal.SIGHUP,))])
@pytest.mark.parametrize("sql", [SILENT, ROWS, GROUPED], ids=["silent", "rows", "grouped"])
def test_a_signal_ends_it(sql: str, number: signal.Signals, filled: Path, fork_server: ForkServer) -> None:
    before = filled.read_bytes()
    run = answering(fork_server.start(filled.parent, "query", sql, "--csv"))
    run.send_signal(number)
    began = time.monotonic()
    ended = run.finish()
    assert time.monotonic() - began < 2
    assert (ended.code, ended.err) == (128 + number, "")
    assert filled.read_bytes() == before
    assert sorted(path.name for path in filled.parent.glob("autotune.db*")) == ["autotune.db"]


def test_one_call_without_an_end_is_left_alone(filled: Path, fork_server: ForkServer) -> None:
    before = filled.read_bytes()
    run = answering(fork_server.start(filled.parent, "query", ONE_CALL))
    run.send_signal(signal.SIGTERM)
    began = time.monotonic()
    ended = run.finish()
    assert time.monotonic() - began < 5
    assert (ended.code, ended.err) == (128 + signal.SIGTERM, "")
    asked = attacked(fork_server, filled.parent, "query", ONE_CALL, "--timeout", "0.1")
    refused(asked, "autotune: query: stopped after 0.1 s: SELECT instr")
    assert attacked(fork_server, filled.parent, "query", "SELECT count(*) FROM trials").code == 0
    assert filled.read_bytes() == before


@pytest.mark.parametrize("style", ["--csv", *long_run(("--json",), ("--db=autotune.db",))])
def test_rows_without_an_end_take_little_memory(style: str, filled: Path, fork_server: ForkServer) -> None:
    words = ("query", ROWS, "--timeout", "1", style)
    ended = attacked(fork_server, filled.parent, *words, memory_bytes=LITTLE_BYTES)
    refused(ended, "autotune: query: stopped after 1 s: WITH RECURSIVE")
    assert len(ended.out) > 1 << 20, "what there was by then is told"


def test_a_statement_that_never_answers_ends_at_its_timeout(filled: Path, fork_server: ForkServer) -> None:
    ended = attacked(fork_server, filled.parent, "query", SILENT, "--timeout", "0.3")
    refused(ended, "autotune: query: stopped after 0.3 s: WITH RECURSIVE")
    assert attacked(fork_server, filled.parent, "query", "SELECT 1", "--timeout", "nan").code == 2
    assert attacked(fork_server, filled.parent, "query", "SELECT 1", "--timeout", "inf").code == 0


@pytest.mark.parametrize(
    "sql",
    [
        f"{ENDLESS} SELECT n, hex(zeroblob(20000)) AS long FROM endless ORDER BY n DESC",
        *long_run(
            (f"{ENDLESS} SELECT n FROM endless ORDER BY -n",),
            (f"{ENDLESS} SELECT DISTINCT hex(randomblob(20000)) FROM endless ORDER BY 1",),
            (f"{ENDLESS} SELECT hex(randomblob(20000)), count(*) FROM endless GROUP BY 1",),
        ),
    ],
    ids=lambda sql: sql.removeprefix(ENDLESS)[:40],
)
def test_what_sorts_without_an_end_has_limits(sql: str, filled: Path, fork_server: ForkServer) -> None:
    """It is all kept until the last row, in memory and nowhere else; what it takes is said, or how long it took."""
    most = 700 << 20
    ended = attacked(fork_server, filled.parent, "query", sql, memory_bytes=most, within_s=30)
    refused(ended, "autotune: query: needs more than 512 MB of memory at once: WITH RECURSIVE")
    assert ended.out == ""
    ended = attacked(fork_server, filled.parent, "query", sql, "--timeout", "0.05", memory_bytes=most)
    refused(ended, "autotune: query: stopped after 0.05 s: WITH RECURSIVE")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT hex(zeroblob(200000000))", "too big"),
        (f"{ENDLESS} SELECT json_group_array(hex(zeroblob(9000000))) FROM endless", "512 MB of memory at once"),
        (f"SELECT {', '.join(['hex(zeroblob(30000000))'] * 20)}", "needs more than 512 MB of memory at once"),
        (
            "SELECT sqlar_uncompress(x'78da', 200000000)",
            "sqlar_uncompress: a text of 200000000 bytes: ",
        ),
        ("SELECT hex(randomblob(100)) LIKE hex(zeroblob(5000))", "too complex"),
    ],
)
def test_values_that_fill_the_memory(sql: str, words: str, filled: Path, fork_server: ForkServer) -> None:
    refused(attacked(fork_server, filled.parent, "query", sql), "autotune: query: ", words)


def test_a_large_value_is_exact_in_json_and_cut_on_the_terminal(filled: Path, fork_server: ForkServer) -> None:
    sql = "SELECT hex(zeroblob(10000000)) AS zeros"
    (row,) = json.loads(attacked(fork_server, filled.parent, "query", sql, "--json").out)
    assert row == {"zeros": "0" * 20_000_000}
    shown = attacked(fork_server, filled.parent, "query", sql).out
    assert "... (20000000 characters; --json and --csv have all)" in " ".join(shown.split())


def test_columns_of_one_name_are_told_apart_at_once(filled: Path, fork_server: ForkServer) -> None:
    sql = f"SELECT {', '.join(['1 AS a'] * 2000)}"
    (row,) = json.loads(attacked(fork_server, filled.parent, "query", sql, "--json").out)
    assert list(row)[:3] == ["a", "a_2", "a_3"]
    assert len(row) == 2000


def test_a_long_table_has_all_rows(filled: Path, fork_server: ForkServer) -> None:
    sql = f"{ENDLESS} SELECT n FROM endless LIMIT 2500"
    words = attacked(fork_server, filled.parent, "query", sql).out.split()
    assert [int(word) for word in words if word.isdecimal()] == list(range(1, 2501))


def test_a_program_that_asks_may_leave_off(filled: Path) -> None:
    bomb = zlib.compress(bytes(MOST_VALUE_BYTES + 1)).hex()
    with Store(filled, create=False) as store:
        for size_bytes, why in ((1, "a text is not the 1 bytes"), (MOST_VALUE_BYTES + 1, "expected at most 16777216")):
            with pytest.raises(StoreError, match=f"^query: sqlar_uncompress: .*{why}"):
                store.query(f"SELECT sqlar_uncompress(x'{bomb}', {size_bytes})")
        with store.stream(ROWS) as found:
            assert found.columns == ("n", "long")
            assert next(found.rows)[0] == 1
        assert store.query("SELECT 1").rows == ((1,),), "and ask again"
