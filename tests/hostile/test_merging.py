"""A merge is one transaction: another process that tunes waits for it, and a killed merge adds nothing."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from autotune.resources import recorded_database
from autotune.store import Store
from tests.fork_server import ForkServer
from tests.unit.store.builders import config_of, correct, open_scope, run_trial, source_of

from .attack import attacked

MERGE = ("merge", "other.db", "--db", "here.db")
MERGED = (
    "SELECT count(*) FROM trials JOIN tuning_targets ON tuning_targets.id = tuning_target_id "
    "WHERE outcome <> 'running' AND kind <> 'layers'"
)
"""trials without those of dispatchers"""


@pytest.fixture
def two(filled: Path) -> Path:
    """A folder with other.db, which has about a thousand trials, and here.db, which has none of them."""
    shutil.copy(recorded_database("recorded"), filled.parent / "other.db")
    shutil.copy(filled, filled.parent / "here.db")
    return filled.parent


def asked(path: Path, sql: str) -> list[tuple[int | str, ...]]:
    """The rows of a statement."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(sql).fetchall()


def test_who_tunes_meanwhile_waits_and_loses_nothing(two: Path, fork_server: ForkServer) -> None:
    here = two / "here.db"
    ((begun,),) = asked(here, "SELECT count(*) FROM trials")
    with Store(here) as store:
        scope = open_scope(store)
        run = fork_server.start(two, *MERGE)
        number = 0
        while not run.ended:
            source = source_of(config_of(number))
            run_trial(store, scope, correct(number, 50.0, source=source), source)
            number += 1
            time.sleep(0.02)
        done = run.finish()
    assert done.code == 0, done.err
    assert asked(here, "SELECT count(*) FROM trials WHERE origin = 'measured'") == [(int(begun) + number,)]
    merged = asked(here, "SELECT count(*) FROM trials WHERE origin = 'imported'")
    assert merged == asked(two / "other.db", MERGED)


@pytest.mark.long
def test_a_merge_that_was_killed_has_brought_nothing(two: Path, fork_server: ForkServer) -> None:
    here = two / "here.db"
    before = asked(here, "SELECT * FROM trials")
    run = fork_server.start(two, *MERGE)
    until = time.monotonic() + 60
    while not Path(f"{here}-wal").exists() and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.2)
    run.send_signal(signal.SIGKILL)
    assert run.finish().code == -signal.SIGKILL
    assert asked(here, "SELECT * FROM trials") == before
    again = attacked(fork_server, two, *MERGE, within_s=60)
    assert "there already: 0 trials" in again.err
    assert asked(here, "PRAGMA integrity_check") == [("ok",)]
    assert "there already: " in attacked(fork_server, two, *MERGE, within_s=60).err
