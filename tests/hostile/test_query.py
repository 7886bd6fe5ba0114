"""Statements that do not end can be stopped, and take little memory."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run

from .attack import attacked, refused

ENDLESS = "WITH RECURSIVE endless(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM endless)"
SILENT = f"{ENDLESS} SELECT count(*) FROM endless"
ROWS = f"{ENDLESS} SELECT n, hex(zeroblob(500)) AS long FROM endless"
GROUPED = f"{ENDLESS} SELECT group_concat(n) FROM endless"


def answering(run: ForkedRun) -> ForkedRun:
    """A run whose statement has started."""
    time.sleep(3)
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


def test_a_statement_that_never_answers_ends_at_its_timeout(filled: Path, fork_server: ForkServer) -> None:
    ended = attacked(fork_server, filled.parent, "query", SILENT, "--timeout", "0.3")
    refused(ended, "autotune: query: stopped after 0.3 s: WITH RECURSIVE")
    assert attacked(fork_server, filled.parent, "query", "SELECT 1", "--timeout", "inf").code == 0


def test_a_large_value_is_exact_in_json(filled: Path, fork_server: ForkServer) -> None:
    sql = "SELECT hex(zeroblob(10000000)) AS zeros"
    (row,) = json.loads(attacked(fork_server, filled.parent, "query", sql, "--json").out)
    assert row == {"zeros": "0" * 20_000_000}


def test_columns_of_one_name_are_told_apart_at_once(filled: Path, fork_server: ForkServer) -> None:
    sql = f"SELECT {', '.join(['1 AS a'] * 2000)}"
    (row,) = json.loads(attacked(fork_server, filled.parent, "query", sql, "--json").out)
    assert list(row)[:3] == ["a", "a_2", "a_3"]
    assert len(row) == 2000


def test_a_long_table_has_all_rows(filled: Path, fork_server: ForkServer) -> None:
    sql = f"{ENDLESS} SELECT n FROM endless LIMIT 2500"
    words = attacked(fork_server, filled.parent, "query", sql).out.split()
    assert [int(word) for word in words if word.isdecimal()] == list(range(1, 2501))
