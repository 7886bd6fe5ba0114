"""SIGKILL at random moments: committed trials stay, nothing runs twice, nothing is left behind."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.store import Store, TrialRow
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run
from tests.processes import MARK, marked, removing_leftovers

from .tiny import changed, write_family

Start = Callable[..., tuple[ForkedRun, str]]
"""Starts a run with the given further words; returns the run and its mark."""
NULL = ("--device", "null:delay_ms=15,compile=0.1,wrong=0.1,hang=0.05", "--trials", "40")


@pytest.fixture
def start(folder: Path, fork_server: ForkServer) -> Start:
    """Start runs of the small study in the folder, each with a mark by which its processes are found again."""

    def run(*words: str) -> tuple[ForkedRun, str]:
        mark = uuid.uuid4().hex
        return fork_server.start(
            folder, "tune", "small.toml", "--family-dir", "families", *words, env={MARK: mark}
        ), mark

    return run


def left_behind(mark: str) -> list[str]:
    """Command lines of processes that a run has started and that still live after a moment."""
    removing_leftovers(mark, 10.0)
    return list(marked(mark).values())


def finish(run: ForkedRun) -> str:
    """Let a run end by itself; returns its output."""
    finished = run.finish()
    assert finished.code == 0, finished.err
    return finished.err


def stored(path: Path) -> tuple[TrialRow, ...]:
    """The trials in a database; none if there is no usable one yet."""
    if not path.exists():
        return ()
    with Store(path) as store:
        return store.trials.list("small") if store.studies.list() else ()


def told(rows: tuple[TrialRow, ...]) -> list[tuple[object, ...]]:
    """All fields of a trial except dates and wall-clock times."""
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
        return [
            (row.name, row.row.trial.number, row.row.trial.config, row.median_us) for row in store.best.list("small")
        ]


def finished(rows: tuple[TrialRow, ...]) -> dict[int, tuple[object, ...]]:
    """The trials that ended, by number."""
    return {row.trial.number: entry for row, entry in zip(rows, told(rows), strict=True) if row.ended_at is not None}


@pytest.mark.parametrize("kills", [3, *long_run((20,))])
def test_killed_again_and_again_a_study_comes_to_the_same(kills: int, folder: Path, start: Start) -> None:
    whole, _ = start(*NULL, "--db", "whole.db")
    finish(whole)
    rng = random.Random(20)
    path = folder / "killed.db"
    done: dict[int, tuple[object, ...]] = {}
    progress = []
    for kill in range(kills):
        run, mark = start(*NULL, "--db", "killed.db")
        if kill % 4 == 3:
            time.sleep(rng.uniform(0.0, 0.2))  # during its start
        else:
            run.wait_for("device null" if kill % 4 == 0 else "small.one: ")
            time.sleep(rng.uniform(0.0, 0.15))
        run.kill()
        assert left_behind(mark) == []
        now = finished(stored(path))
        assert done.items() <= now.items(), "what had ended is as it was"
        done = now
        progress.append(len(done))
    assert progress[0] < progress[-1], "the kills fell while it worked"
    assert len(set(progress)) > kills / 5
    last, _ = start(*NULL, "--db", "killed.db")
    finish(last)
    assert told(stored(path)) == told(stored(folder / "whole.db"))
    assert best(path) == best(folder / "whole.db")


ASIDE = ("--device", "null:compile_ms=60,delay_ms=40,compilers=6,wrong=0.1,hang=0.05", "--trials", "24")
LAYERS = "".join(
    f'[[layer]]\nname = "{name}"\nn = 3\nc = 2\nh = {h}\nw = 8\nk = {k}\nr = 3\ns = 3\ncount = 2\n'
    for name, h, k in (("two", 10, 64), ("three", 40, 4), ("four", 11, 4))
)


@pytest.mark.parametrize("kills", [4, *long_run((20,))])
@pytest.mark.parametrize("common", [*long_run(((),)), ("--trials-total", "70")], ids=["own budgets", "one budget"])
def test_killed_amid_several_layers_each_is_completed(
    common: tuple[str, ...], kills: int, folder: Path, start: Start
) -> None:
    study = folder / "small.toml"
    study.write_text(study.read_text() + LAYERS)
    rng = random.Random(21)
    path = folder / "killed.db"
    done: dict[tuple[str, int], object] = {}
    most_at_once = 0
    for _ in range(kills):
        run, mark = start(*ASIDE, *common, "--db", "killed.db")
        run.wait_for("small: ")
        time.sleep(rng.uniform(0.2, 0.6))
        run.kill()
        assert left_behind(mark) == []
        rows = stored(path)
        running = {row.name for row in rows if row.ended_at is None}
        most_at_once = max(most_at_once, len(running))
        now = of_layers(rows)
        assert done.items() <= now.items(), "what had ended is as it was"
        done = now
    assert most_at_once > 1, "the kills fell while several layers were under way"
    last, _ = start(*ASIDE, *common, "--db", "killed.db")
    finish(last)
    rows = stored(path)
    assert done.items() <= of_layers(rows).items()
    assert all(row.ended_at for row in rows), "nothing is left running"
    evaluated = [(row.name, row.trial.config) for row in rows]
    assert len(set(evaluated)) == len(evaluated), "nothing ran twice"
    counts = Counter(name for name, _ in evaluated)
    assert len(counts) == 4
    assert counts.total() == 70 if common else set(counts.values()) == {24}


def of_layers(rows: tuple[TrialRow, ...]) -> dict[tuple[str, int], object]:
    """The trials that ended, by layer and number."""
    ended = [row for row in rows if row.ended_at is not None]
    return {(row.name, row.trial.number): entry for row, entry in zip(ended, told(tuple(ended)), strict=True)}


@pytest.mark.long
@pytest.mark.cxx
def test_killed_on_a_real_device_nothing_is_lost_and_nothing_runs_twice(folder: Path, start: Start) -> None:
    text = (folder / "small.toml").read_text()
    (folder / "small.toml").write_text(changed(text, ("trials = 10", "trials = 5\nmeasure.cache = 'hot'")))
    words = ("--device", "host", "--jobs", "1", "--db", "killed.db")
    path = folder / "killed.db"
    rng = random.Random(3)
    done: dict[int, tuple[object, ...]] = {}
    attempts: dict[int, int] = {}
    for kill in range(3):
        run, mark = start(*words)
        run.wait_for("device host")
        while kill and not run.ended and len(finished(stored(path))) == len(done):
            time.sleep(0.2)  # except the first, kill it only after it has progressed further
        time.sleep(rng.uniform(0.0, 1.0))
        run.kill()
        assert left_behind(mark) == []
        now = finished(stored(path))
        assert done.items() <= now.items(), "what had ended is as it was"
        done = now
        for row in stored(path):
            if row.trial.number in done:
                attempts.setdefault(row.trial.number, row.attempts)
    last, mark = start(*words)
    assert "small.one: 5 evaluated" in finish(last)
    rows = stored(path)
    assert done.items() <= finished(rows).items()
    assert len(finished(rows)) == len(rows), "nothing is left running"
    evaluated = [row for row in rows if row.trial.compiled]
    assert {row.trial.outcome.value for row in evaluated} == {"correct"}, [row.trial.message for row in evaluated]
    assert len({row.trial.config for row in evaluated}) == len({row.trial.number for row in evaluated}) == 5
    again = {row.trial.number: row.attempts for row in rows if row.trial.number in done}
    assert again == attempts, "nothing that had ended ran again"
    assert left_behind(mark) == []


@pytest.mark.cxx
def test_killed_in_an_endless_kernel_nothing_is_left_spinning(folder: Path, start: Start) -> None:
    write_family(
        folder / "families",
        ("float sum = 0.0f;", "float sum = 0.0f;\n        volatile int on = 1;\n        while (on) {}"),
    )
    run, mark = start("--device", "host", "--jobs", "1", "--db", "killed.db")
    run.wait_for("device host")
    while not any(row.trial.outcome == "running" for row in stored(folder / "killed.db")):
        assert not run.ended
        time.sleep(0.2)
    time.sleep(0.3)
    run.kill()
    assert left_behind(mark) == []
    suspects = [row for row in stored(folder / "killed.db") if row.trial.outcome == "running"]
    assert [row.attempts for row in suspects] in ([1], [1, 1], [1, 1, 1]), "the one that ran, and those next in line"


def test_an_empty_file_of_a_run_killed_at_its_start_is_filled(folder: Path, start: Start) -> None:
    (folder / "empty.db").touch()
    run, _ = start(*NULL, "--db", "empty.db")
    finish(run)
    assert best(folder / "empty.db")
