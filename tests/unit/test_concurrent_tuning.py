"""Eight processes tune into one file at once: nothing is lost and none of them fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.store import Store
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run

from .tiny import changed

Tune = Callable[[str], ForkedRun]

TRIALS = 8
NULL = ("--family-dir", "families", "--device", "null:delay_ms=20,compile=0.1,wrong=0.1")


@pytest.fixture
def tune(folder: Path, fork_server: ForkServer) -> Tune:
    """Start tuning studies of the folder into one database."""

    def start(study: str) -> ForkedRun:
        words = (f"{study}.toml", *NULL, "--db", "together.db", "--trials", TRIALS)
        return fork_server.start(folder, "tune", *words)

    return start


def test_the_same_study_is_tuned_by_one_process_after_another(folder: Path, tune: Tune) -> None:
    running = [tune("small") for _ in range(3)]
    ended = [run.finish() for run in running]
    assert [run.code for run in ended] == [0, 0, 0], ended
    assert sum("another process is tuning it" in run.err for run in ended) >= 1
    with Store(folder / "together.db", create=False) as store:
        rows = store.trials.list("small")
    assert {row.attempts for row in rows} == {1}, "nobody took another's running trial for one that was cut off"
    assert len({row.trial.config for row in rows}) == len(rows), "and nothing was evaluated twice"
    assert sum(row.trial.compiled for row in rows) >= TRIALS
    assert all(row.ended_at is not None for row in rows)


@pytest.mark.parametrize("processes", [3, *long_run((8,))])
def test_many_processes_tune_into_one_file(processes: int, folder: Path, tune: Tune) -> None:
    text = (folder / "small.toml").read_text()
    studies = [f"study{number}" for number in range(processes)]
    for number, study in enumerate(studies):
        seeded = changed(text, ('name = "small"', f'name = "{study}"\nseed = {number}'))
        (folder / f"{study}.toml").write_text(seeded)
    running = [tune(study) for study in studies]
    for run in running:
        finished = run.finish()
        assert finished.code == 0, finished.err
        assert "Traceback" not in finished.err
    raw = sqlite3.connect(folder / "together.db")
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    assert raw.execute("SELECT count(*) FROM trials WHERE outcome = 'running'").fetchone() == (0,)
    assert raw.execute("SELECT count(*) FROM layers").fetchone() == (1,), "they share the layer"
    raw.close()
    with Store(folder / "together.db", create=False) as store:
        assert sorted(study.name for study in store.studies.list()) == studies
        for study in studies:
            rows = store.trials.list(study)
            assert sum(row.trial.compiled for row in rows) >= TRIALS
            assert [row.trial.number for row in rows] == list(range(len(rows)))
            assert len({row.trial.config for row in rows}) == len(rows)
            assert all(row.ended_at is not None for row in rows)
        assert [row.name for row in store.best.list()]
    assert not [file.name for file in folder.iterdir() if file.name.endswith(("-wal", "-shm"))]
