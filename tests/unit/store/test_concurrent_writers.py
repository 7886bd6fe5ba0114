"""Several processes write to one file: nothing is lost or torn, and nobody waits for long."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from autotune.errors import StoreError
from autotune.store import Store
from autotune.trial import Outcome
from tests.long_run import long_run

from .builders import CONV1, correct, open_scope, run_trial

TRIALS = 25
ROOT = Path(__file__).parents[3]

WRITERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from {package} import builders
from autotune.store import Store

path, count, studies = sys.argv[2], int(sys.argv[3]), sys.argv[4:]
for study in studies:
    if os.fork() == 0:
        with Store(path) as store:
            scope = builders.open_scope(store, study=study)
            for number in range(store.trials.next_number(scope), count):
                source = builders.source_of(builders.config_of(number))
                key = store.trials.begin(scope, number, builders.config_of(number), source)
                store.trials.end(key, builders.correct(number, 10.0 + number, source=source))
        os._exit(0)
sys.exit(max(os.wait()[1] for _ in studies) > 0)
"""


def write_from_processes(path: Path, count: int, *studies: str) -> None:
    """Let a process per study store `count` trials, all at once: they are forks of one that has imported the store."""
    package = __package__ or ""
    top = Path(__file__).parents[package.count(".") + 1]
    command = [sys.executable, "-c", WRITERS.format(package=package), str(top), str(path), str(count), *studies]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def check_consistent(path: Path) -> None:
    """No torn page, no orphan, no finished trial without its measurement."""
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    torn = """SELECT count(*) FROM trials LEFT JOIN measurements ON trial_id = trials.id
              WHERE (outcome = 'correct') <> (measurements.id IS NOT NULL)"""
    assert raw.execute(torn).fetchone() == (0,)
    raw.close()


@pytest.mark.parametrize("processes", [3, *long_run((8,))])
def test_many_writers_lose_nothing(processes: int, path: Path) -> None:
    write_from_processes(path, TRIALS, *(f"study{index}" for index in range(processes)))
    check_consistent(path)
    with Store(path, create=False) as store:
        for index in range(processes):
            rows = store.trials.list(f"study{index}.conv1")
            assert [(row.trial.number, row.median_us) for row in rows] == [(n, 10.0 + n) for n in range(TRIALS)]
        assert len(store.query("SELECT * FROM layers").rows) == 2, "they share the layers"
        assert len(store.query("SELECT * FROM sources").rows) == TRIALS, "and the sources"


def test_a_reader_in_the_middle_of_a_look_holds_no_writer_up(path: Path, store: Store) -> None:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("BEGIN")
    assert raw.execute("SELECT count(*) FROM trials").fetchone() == (0,)
    with Store(path, timeout_s=0.1) as writer:
        run_trial(writer, open_scope(writer), correct(0, 10.0))
    assert raw.execute("SELECT count(*) FROM trials").fetchone() == (0,), "it sees one state of the file"
    raw.execute("COMMIT")
    assert raw.execute("SELECT count(*) FROM trials").fetchone() == (1,)
    raw.close()


def test_looking_into_a_file_that_is_open_loses_none_of_its_locks(path: Path) -> None:
    """If a reader dropped a lock, the next process to leave would take the log away from the writer."""
    with Store(path) as store:
        scope = open_scope(store)
        run_trial(store, scope, correct(0, 10.0))
        with Store(path, create=False) as reader:
            assert reader.query("SELECT count(*) FROM trials").rows == ((1,),)
        with Store(path) as second:
            assert len(second.trials.list()) == 1
        store.query("SELECT 1")
        write_from_processes(path, 1, "another")
        run_trial(store, scope, correct(1, 20.0))
        check_consistent(path)
        looked = subprocess.run(
            [sys.executable, "-m", "autotune", "trials", "lenet", "--db", str(path), "--json"],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert [row["median_us"] for row in json.loads(looked.stdout)] == [10.0, 20.0]


def test_opening_and_committing_are_quick(path: Path) -> None:
    """Medians of CPU time, which do not depend on the load; a commit takes 2 ms."""
    with Store(path) as store:
        scope = open_scope(store)
        commits = []
        for number in range(100):
            begun = time.process_time()
            run_trial(store, scope, correct(number, 10.0))
            commits.append((time.process_time() - begun) / 2)
    opens = []
    for _ in range(9):
        begun = time.process_time()
        Store(path).close()
        opens.append(time.process_time() - begun)
    assert sorted(opens)[4] < 0.05
    assert sorted(commits)[50] < 0.01


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("CREATE VIEW results AS SELECT 1")
    raw.close()
    with pytest.raises(StoreError):
        Store(path)
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("results",)]
    raw.close()


def test_a_study_survives_its_process(path: Path) -> None:
    """Rows that one connection committed are visible to the next one without a close."""
    store = Store(path)
    run_trial(store, open_scope(store), correct(0, 10.0))
    with Store(path, create=False) as other:
        assert [row.trial.outcome for row in other.trials.list(CONV1.name)] == [Outcome.CORRECT]
    store.close()
