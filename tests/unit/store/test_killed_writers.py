"""A writer is killed at random moments: the file is always whole and has every committed row."""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.store import Finals, Store
from autotune.trial import Outcome
from tests.long_run import long_run

from .builders import (
    DRIVER_590,
    H200,
    config_of,
    correct,
    failed,
    open_scope,
    source_of,
    timing_of,
)

ROOT = Path(__file__).parents[3]
LONGEST_S = 0.04
"""seconds until a kill, enough for about ten trials"""


def write(path: Path, promise: int) -> None:
    """Store trials of every kind without end, and report each number through a pipe once it is committed."""
    with Store(path) as store:
        scope = open_scope(store, study="study")
        for suspect in store.trials.suspects(scope):
            store.trials.end(suspect, correct(suspect.number, 1.0))
        number = store.trials.next_number(scope)
        while True:
            source = source_of(config_of(number))
            if number % 5 == 4:
                store.trials.add(scope, failed(number), source)
            else:
                key = store.trials.begin(scope, number, config_of(number), source)
                store.trials.end(key, correct(number, 10.0 + number, source=source))
            os.write(promise, f"{number}\n".encode())
            if number % 10 == 3:
                store.finals.add(scope, Finals(number, ((number, timing_of(9.0)), (number - 1, timing_of(9.5)))))
                store.retimes.add(
                    store.trials.list("study.conv1", limit=1)[0], H200, DRIVER_590, "confirmed", timing_of(9.1)
                )
            number += 1


def kill_writers(path: Path, kills: int, seed: int) -> None:
    """Fork a writer, kill it, return the committed numbers, and wait for the next request: forking saves as many
    starts.
    """
    rng = random.Random(seed)
    for _ in range(kills):
        heard, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(heard)
            write(path, told)
        os.close(told)
        if rng.random() < 0.75:
            select.select([heard], [], [], 30.0)  # it has stored one; the other times it is killed during its start
        time.sleep(rng.uniform(0.0, LONGEST_S))
        os.kill(child, signal.SIGKILL)
        with os.fdopen(heard) as lines:
            promised = " ".join(line.strip() for line in lines if line.endswith("\n"))
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else "ended", promised, flush=True)
        sys.stdin.readline()


def counted(raw: sqlite3.Connection, sql: str) -> int:
    return int(raw.execute(f"SELECT count(*) FROM {sql}").fetchone()[0])


def check(path: Path, promised: set[int]) -> None:
    """The file is whole: no torn page, orphan, duplicate or half of a trial, and no committed trial is missing."""
    raw = sqlite3.connect(path)
    try:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        if not raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'trials'").fetchone():
            assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,), "all of the schema or nothing"
            return
        ended = {number for (number,) in raw.execute("SELECT number FROM trials WHERE outcome <> 'running'")}
        assert promised <= ended
        numbers = [number for (number,) in raw.execute("SELECT number FROM trials ORDER BY number")]
        assert numbers == list(range(len(numbers))), "no gap and no duplicate"
        assert counted(raw, "trials WHERE outcome = 'running'") <= 1
        tuned = "measurements ON trial_id = trials.id AND finals_id IS NULL AND retime_id IS NULL"
        assert (
            counted(raw, f"trials LEFT JOIN {tuned} WHERE (outcome = 'correct') <> (measurements.id IS NOT NULL)") == 0
        )
        assert counted(raw, "sources WHERE id NOT IN (SELECT source_id FROM trials)") == 0
        assert counted(raw, "finals WHERE 2 <> (SELECT count(*) FROM measurements WHERE finals_id = finals.id)") == 0
        assert counted(raw, "retimes WHERE 1 <> (SELECT count(*) FROM measurements WHERE retime_id = retimes.id)") == 0
        assert counted(raw, "studies") <= 1
        assert counted(raw, "tuning_targets GROUP BY layer_id HAVING count(*) > 1 UNION ALL SELECT 0 LIMIT 1") == 0
    finally:
        raw.close()


@pytest.mark.parametrize("kills", [8, *long_run((100,))])
def test_killed_again_and_again_the_file_is_whole(kills: int, tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    script = f"from {__name__} import *; kill_writers(Path(sys.argv[1]), {kills}, 7)"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    promised: set[int] = set()
    grew = 0
    for _ in range(kills):
        how, *numbers = process.stdout.readline().split()
        assert how == str(int(signal.SIGKILL)), "it was still writing"
        grew += bool(numbers)
        promised |= {int(number) for number in numbers}
        if path.exists():
            check(path, promised)
        process.stdin.write("\n")
        process.stdin.flush()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert grew > kills / 2, "the kills fell while it worked"
    with Store(path) as store:
        assert {trial.number for trial in store.trials.history(open_scope(store, study="study"))} >= promised
        assert store.best.list("study")[0].row.trial.outcome == Outcome.CORRECT
    assert sorted(file.name for file in tmp_path.iterdir()) == ["autotune.db"]
