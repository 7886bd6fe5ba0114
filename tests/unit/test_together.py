"""Eight processes tune into one file at once: nothing is lost and none of them fails."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from autotune.store import Store

from .tiny import changed

PROCESSES = 8
TRIALS = 8
NULL = ("--templates", "families", "--device", "null:delay_ms=20,compile=0.1,wrong=0.1")


def tune(folder: Path, study: str, db: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", "tune", f"{study}.toml", *NULL, "--db", db, "--trials", str(TRIALS)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / ".cache")},
        text=True,
    )


def test_the_same_study_is_tuned_by_one_process_after_another(folder: Path) -> None:
    running = [tune(folder, "small", "together.db") for _ in range(3)]
    said = []
    for process in running:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        said.append(err)
    assert sum("another process is tuning it" in err for err in said) >= 1
    with Store(folder / "together.db", create=False) as store:
        rows = store.trials("small")
    assert {row.attempts for row in rows} == {1}, "nobody took another's running trial for one that was cut off"
    assert len({row.trial.config for row in rows}) == len(rows), "and nothing was evaluated twice"
    assert sum(row.trial.compiled for row in rows) >= TRIALS
    assert all(row.ended_at is not None for row in rows)


def test_eight_processes_tune_into_one_file(folder: Path) -> None:
    text = (folder / "small.toml").read_text()
    studies = [f"study{number}" for number in range(PROCESSES)]
    for number, study in enumerate(studies):
        seeded = changed(text, ('name = "small"', f'name = "{study}"\nseed = {number}'))
        (folder / f"{study}.toml").write_text(seeded)
    running = [tune(folder, study, "together.db") for study in studies]
    for process in running:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert "Traceback" not in err
    raw = sqlite3.connect(folder / "together.db")
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    assert raw.execute("SELECT count(*) FROM trials WHERE outcome = 'running'").fetchone() == (0,)
    assert raw.execute("SELECT count(*) FROM layers").fetchone() == (1,), "they share the layer"
    raw.close()
    with Store(folder / "together.db", create=False) as store:
        assert sorted(study.name for study in store.studies()) == studies
        for study in studies:
            rows = store.trials(study)
            assert sum(row.trial.compiled for row in rows) >= TRIALS
            assert [row.trial.number for row in rows] == list(range(len(rows)))
            assert len({row.trial.config for row in rows}) == len(rows)
            assert all(row.ended_at is not None for row in rows)
        assert [row.name for row in store.best()]
    assert not [file.name for file in folder.iterdir() if file.name.endswith(("-wal", "-shm"))]
