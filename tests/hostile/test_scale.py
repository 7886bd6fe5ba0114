"""Very many trials: merging lets others write, and can be killed at any time."""

from __future__ import annotations

import math
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from autotune.analysis.why import explain
from autotune.store import Store
from tests.benchmarks.scale import enlarge
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.store.builders import config_of, correct, open_scope, run_trial, source_of

from .attack import attacked
from .rows import HOSTILE, plant

TRIALS = 6000
MEMORY_BYTES = 20 << 20


@pytest.fixture
def two(filled: Path) -> Path:
    """A folder with other.db, of very many trials, and here.db, which has none of them."""
    shutil.copy(filled, filled.parent / "other.db")
    enlarge(filled.parent / "other.db", TRIALS)
    return filled.parent


def asked(path: Path, sql: str) -> list[tuple[int | str, ...]]:
    """What a statement yields."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(sql).fetchall()


TABLES = ("studies", "sources", "trials", "measurements", "finals", "verdicts", "retimes", "end_to_end_timings")


def counts(path: Path) -> dict[str, int]:
    """How many rows each of these tables has."""
    with closing(sqlite3.connect(path)) as raw:
        return {table: raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}


def imported(path: Path) -> bool:
    """Whether a trial has been merged; False before there are tables."""
    try:
        return asked(path, "SELECT count(*) FROM trials") != [(0,)]
    except sqlite3.OperationalError:
        return False


def test_others_write_while_a_merge_is_under_way(two: Path, fork_server: ForkServer) -> None:
    """A trial that is stored meanwhile comes between those that are merged, and each is there once."""
    here = two / "here.db"
    enlarge(two / "other.db", 15 * TRIALS, since=TRIALS)  # as a thousand take some 10 ms, and it rests after 0.5 s
    with Store(here) as store:
        scope = open_scope(store)
        run = fork_server.start(two, "merge", "other.db", "--db", "here.db")
        number, longest_s = 0, 0.0
        while not run.ended:
            begun = time.monotonic()
            source = source_of(config_of(number))
            run_trial(store, scope, correct(number, 50.0, source=source), source)
            longest_s = max(longest_s, time.monotonic() - begun)
            number += 1
            time.sleep(0.02)
        done = run.finish()
    assert done.code == 0, done.err
    own, merged = "origin = 'measured'", "origin = 'imported'"
    between = (
        f"SELECT count(*) FROM trials WHERE {own} AND id BETWEEN (SELECT min(id) FROM trials WHERE {merged}) "
        f"AND (SELECT max(id) FROM trials WHERE {merged})"
    )
    assert asked(here, between)[0][0] != 0, f"of {number} none; the longest took {longest_s:.1f} s"
    assert asked(here, f"SELECT count(*) FROM trials WHERE {own}") == [(number,)]
    ended = asked(two / "other.db", "SELECT count(*) FROM trials WHERE outcome <> 'running'")
    assert asked(here, f"SELECT count(*) FROM trials WHERE {merged}") == ended


def test_the_lock_is_left_to_others_for_as_long_as_they_sleep(two: Path, fork_server: ForkServer) -> None:
    """In every second of a merge: who waits for SQLite's lock looks every 0.1 s whether it is free.

    More than once, as a busy machine may put a merge to sleep between two transactions.
    """
    many, looks_every_s = 150_000, 0.1
    enlarge(two / "other.db", many, since=TRIALS)
    here = two / "here.db"
    shutil.copy(two / "autotune.db", here)
    last = counts(here)["trials"] + many  # by which time it is not about to end
    with closing(sqlite3.connect(here, isolation_level=None)) as reader:
        reader.execute("PRAGMA journal_mode = WAL")
        reader.execute("BEGIN")  # while it reads, the log is not folded into the file, which leaves the lock free too
        begun = reader.execute("SELECT max(id) FROM trials").fetchone()[0]
        run = fork_server.start(two, "merge", "other.db", "--db", "here.db")
        merging_s, free_s = free_stretches(here, lambda: run.ended, lambda trial_id: begun < trial_id < last)
    done = run.finish()
    assert done.code == 0, done.err
    longer = sum(stretch_s > looks_every_s for stretch_s in free_s)
    assert longer > max(1.0, merging_s), f"in {merging_s:.1f} s free for {sorted(free_s)[-5:]} s at most"


def free_stretches(
    path: Path, ended: Callable[[], bool], counts_while: Callable[[int], bool]
) -> tuple[float, list[float]]:
    """How long the last trial's id was one that counts, and how long, each time, nobody held the write lock then."""
    found: list[float] = []
    since, first, last = math.inf, math.inf, 0.0
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as raw:
        while not ended():
            try:
                raw.execute("BEGIN IMMEDIATE")
                raw.execute("ROLLBACK")
                free = counts_while(raw.execute("SELECT max(id) FROM trials").fetchone()[0])
            except sqlite3.OperationalError:
                free = False
            now = time.monotonic()
            if free:
                since, first, last = min(since, now), min(first, now), now
            elif since < math.inf:
                found.append(now - since)
                since = math.inf
            time.sleep(0.002)
    return last - first, found


def test_another_tunes_the_study_that_is_merged(two: Path, fork_server: ForkServer) -> None:
    """It takes the numbers that come next in the merged file, too: both keep every trial."""
    here = two / "here.db"
    shutil.copy(two / "autotune.db", here)
    begun, number = counts(here)["trials"], 0
    run = fork_server.start(two, "merge", "other.db", "--db", "here.db")
    with closing(sqlite3.connect(here, timeout=30, isolation_level=None)) as raw:
        columns = [name for _, name, *_ in raw.execute("PRAGMA table_info(trials)")]
        changed = {
            "id": "NULL",
            "number": "(SELECT max(number) + 1 FROM trials)",
            "config": "json_set(config, '$.own', ?)",
        }
        copied = ", ".join(changed.get(name, name) for name in columns)
        compiled = "SELECT min(id) FROM trials WHERE outcome = 'correct'"
        while not run.ended:
            raw.execute(f"INSERT INTO trials SELECT {copied} FROM trials WHERE id = ({compiled})", (number,))
            number += 1
            time.sleep(0.02)
    done = run.finish()
    assert done.code == 0, done.err
    assert asked(here, "SELECT count(*) FROM trials WHERE origin = 'imported'") == [(TRIALS,)]
    assert counts(here)["trials"] == begun + number + TRIALS


def test_a_merge_that_was_killed_goes_on(two: Path, fork_server: ForkServer) -> None:
    here = two / "here.db"
    run = fork_server.start(
        two, "merge", "other.db", "--db", "here.db", env={"TMPDIR": str(two)}
    )  # a copy is left there
    until = time.monotonic() + 60
    while not run.ended and time.monotonic() < until:
        if here.exists() and imported(here):
            run.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert run.finish().code == -signal.SIGKILL
    some = counts(here)
    assert 0 < some["trials"] < TRIALS
    without = "SELECT count(*) FROM trials WHERE outcome = 'correct' AND id NOT IN (SELECT trial_id FROM measurements)"
    assert asked(here, without) == [(0,)], "a trial came without its measurement"
    again = attacked(fork_server, two, "merge", "other.db", "--db", "here.db", within_s=60)
    assert f"there already: {some['trials']} trials" in again.err
    attacked(fork_server, two, "merge", "other.db", "--db", "whole.db", within_s=60)
    assert counts(here) == counts(two / "whole.db")
    each = "SELECT number, config, started_at FROM trials WHERE outcome <> 'running' ORDER BY number, config"
    assert asked(here, each) == asked(two / "other.db", each)
    assert asked(here, "PRAGMA integrity_check") == [("ok",)]


def test_a_database_with_hostile_rows_takes_others(two: Path, fork_server: ForkServer) -> None:
    """Rows that cannot be understood stay as they are, and what is merged beside them is understood."""
    plant(two / "autotune.db", *HOSTILE)
    hurt = attacked(fork_server, two, "dump", "--check", "--json").out
    begun = counts(two / "autotune.db")["trials"]
    done = attacked(fork_server, two, "merge", "other.db", within_s=60)
    assert done.code == 0, done.err
    assert counts(two / "autotune.db")["trials"] == begun + TRIALS
    assert attacked(fork_server, two, "dump", "--check", "--json").out == hurt


@pytest.mark.parametrize("style", every(2, ("--csv", "--json")))
def test_a_list_of_all_trials_needs_little_memory(two: Path, fork_server: ForkServer, style: str) -> None:
    """Kept all at once, these rows take more than the limit."""
    plant(two / "other.db", "a config that is a list")
    done = attacked(
        fork_server, two, "trials", "--all", style, "--db", "other.db", within_s=60, memory_bytes=MEMORY_BYTES
    )
    assert done.code == 0, done.err
    assert "autotune: note: other.db: without trials row " in done.err
    assert done.out.count("small.one") > TRIALS


@pytest.mark.parametrize("limit", [0, 4000])
def test_a_row_that_is_met_amid_a_list_costs_itself(two: Path, fork_server: ForkServer, limit: int) -> None:
    """What came before it is printed once, what comes behind it too, and as many as were asked for."""
    words = ("trials", "--all", "--csv", "--db", "other.db")
    whole = attacked(fork_server, two, *words, within_s=60).out.splitlines()
    with closing(sqlite3.connect(two / "other.db")) as raw, raw:
        raw.execute("UPDATE trials SET config = '[1]' WHERE number = 1003000")
    done = attacked(fork_server, two, *words, "--limit", str(limit), within_s=60)
    assert done.err.count("without trials row ") == 1, done.err
    others = [line for line in whole if ",1003000," not in line]
    assert len(others) == len(whole) - 1
    assert done.out.splitlines() == (others[: limit + 1] if limit else others)


def test_why_reads_of_very_many_trials_what_it_tells_alone(two: Path) -> None:
    """Measured against reading the same trials whole, on which the comparison would come on top."""
    whole_s, why_s = math.inf, math.inf
    with Store(two / "other.db") as store:
        row = store.trials.list(sort="number", limit=TRIALS)[-1]
        best = next(found for found in store.best.list() if found.row.layer == row.layer)
        for _ in range(3):
            begun = time.process_time()
            every = store.trials.list(best.row.problem, generations="all")
            read = time.process_time()
            told = explain(best, store.trials.like(best.row))
            whole_s, why_s = min(whole_s, read - begun), min(why_s, time.process_time() - read)
    assert len(every) > TRIALS
    assert sum(family.evaluated for family in told.families) > TRIALS / 2
    assert why_s < whole_s, f"{why_s:.2f} s, all of {len(every)} trials {whole_s:.2f} s"
