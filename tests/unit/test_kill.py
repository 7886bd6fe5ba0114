"""SIGKILL at random moments: what was committed stays, nothing runs twice, nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from autotune.store import Store, TrialRow
from tests.outside import MARK, marked, none_left

from .tiny import changed, write_family

KILLS = 20
NULL = ("--device", "null:delay_ms=15,compile=0.1,wrong=0.1,hang=0.05", "--trials", "40")


class Run:
    """`python -m autotune tune small.toml`, with a mark by which its processes are found again."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "autotune", "tune", "small.toml", "--templates", "families", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_CACHE_HOME": str(folder / ".cache"), MARK: self.mark},
            text=True,
        )

    def wait_for(self, words: str) -> None:
        """Wait until it says something on standard error, or ends."""
        assert self.process.stderr is not None
        while (line := self.process.stderr.readline()) and not line.startswith(words):
            pass

    def kill(self) -> None:
        """End it as the kernel's out-of-memory killer would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def finish(self) -> str:
        """Let it end by itself."""
        _, err = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, err
        return err

    def left_behind(self) -> list[str]:
        """Command lines of its processes that still live after a moment."""
        none_left(self.mark, 10.0)
        return list(marked(self.mark).values())


def stored(path: Path) -> tuple[TrialRow, ...]:
    """The trials in a database; none where there is no usable one yet."""
    if not path.exists():
        return ()
    with Store(path) as store:
        return store.trials("small") if store.studies() else ()


def told(rows: tuple[TrialRow, ...]) -> list[tuple[object, ...]]:
    """All of a trial but dates and wall-clock times."""
    return [
        (
            row.trial.number,
            row.trial.config,
            row.trial.outcome,
            row.trial.reason,
            row.trial.timing,
            row.trial.source_hash,
        )
        for row in rows
    ]


def best(path: Path) -> list[tuple[object, ...]]:
    """The best of each layer."""
    with Store(path) as store:
        return [(row.name, row.row.trial.number, row.row.trial.config, row.median_us) for row in store.best("small")]


def finished(rows: tuple[TrialRow, ...]) -> dict[int, tuple[object, ...]]:
    """The trials that ended, by number."""
    return {row.trial.number: entry for row, entry in zip(rows, told(rows), strict=True) if row.ended_at is not None}


def test_killed_twenty_times_a_study_comes_to_the_same(folder: Path) -> None:
    Run(folder, *NULL, "--db", "whole.db").finish()
    rng = random.Random(20)
    path = folder / "killed.db"
    done: dict[int, tuple[object, ...]] = {}
    progress = []
    for kill in range(KILLS):
        run = Run(folder, *NULL, "--db", "killed.db")
        if kill % 4 == 3:
            time.sleep(rng.uniform(0.0, 0.8))  # while it starts
        else:
            run.wait_for("device null" if kill % 4 == 0 else "small.one: ")
            time.sleep(rng.uniform(0.0, 0.15))
        run.kill()
        assert run.left_behind() == []
        now = finished(stored(path))
        assert done.items() <= now.items(), "what had ended is as it was"
        done = now
        progress.append(len(done))
    assert progress[0] < progress[-1], "the kills fell while it worked"
    assert len(set(progress)) > 4
    Run(folder, *NULL, "--db", "killed.db").finish()
    assert told(stored(path)) == told(stored(folder / "whole.db"))
    assert best(path) == best(folder / "whole.db")


@pytest.mark.cxx
def test_killed_on_a_real_device_nothing_is_lost_and_nothing_runs_twice(folder: Path) -> None:
    text = (folder / "small.toml").read_text()
    (folder / "small.toml").write_text(changed(text, ("trials = 10", "trials = 5")))
    words = ("--device", "host", "--jobs", "1", "--db", "killed.db")
    path = folder / "killed.db"
    rng = random.Random(3)
    done: dict[int, tuple[object, ...]] = {}
    attempts: dict[int, int] = {}
    for kill in range(3):
        run = Run(folder, *words)
        run.wait_for("device host")
        while kill and run.process.poll() is None and len(finished(stored(path))) == len(done):
            time.sleep(0.2)  # but for the first, kill it only after it has come further
        time.sleep(rng.uniform(0.0, 1.0))
        run.kill()
        assert run.left_behind() == []
        now = finished(stored(path))
        assert done.items() <= now.items(), "what had ended is as it was"
        done = now
        for row in stored(path):
            if row.trial.number in done:
                attempts.setdefault(row.trial.number, row.attempts)
    last = Run(folder, *words)
    assert "small.one: 5 evaluated" in last.finish()
    rows = stored(path)
    assert done.items() <= finished(rows).items()
    assert len(finished(rows)) == len(rows), "nothing is left running"
    evaluated = [row for row in rows if row.trial.compiled]
    assert {row.trial.outcome.value for row in evaluated} == {"correct"}, [row.trial.message for row in evaluated]
    assert len({row.trial.config for row in evaluated}) == len({row.trial.number for row in evaluated}) == 5
    again = {row.trial.number: row.attempts for row in rows if row.trial.number in done}
    assert again == attempts, "nothing that had ended ran again"
    assert last.left_behind() == []


@pytest.mark.cxx
def test_killed_in_an_endless_kernel_nothing_is_left_spinning(folder: Path) -> None:
    write_family(
        folder / "families",
        ("float sum = 0.0f;", "float sum = 0.0f;\n        volatile int on = 1;\n        while (on) {}"),
    )
    run = Run(folder, "--device", "host", "--jobs", "1", "--db", "killed.db")
    run.wait_for("device host")
    while not any(row.trial.outcome == "running" for row in stored(folder / "killed.db")):
        assert run.process.poll() is None
        time.sleep(0.2)
    time.sleep(0.3)
    run.kill()
    assert run.left_behind() == []
    suspects = [row for row in stored(folder / "killed.db") if row.trial.outcome == "running"]
    assert [row.attempts for row in suspects] in ([1], [1, 1]), "the one that ran, and the one next in line"
