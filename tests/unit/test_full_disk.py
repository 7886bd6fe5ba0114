"""A disk that is full while trials are stored: one line, nothing lost, and the run goes on once there is room."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.store import Store, TrialRow

from .tiny import Finished

WORDS = ("tune", "small.toml", "--templates", "families", "--device", "null", "--trials", "60")


def run(folder: Path, *, most_bytes: int | None) -> Finished:
    """Tune, with no file allowed to grow beyond a size, as on a disk that has no more room."""

    def limit() -> None:
        if most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails, as it does on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    done = subprocess.run(
        [sys.executable, "-m", "autotune", *WORDS],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        timeout=120,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def stored(path: Path) -> tuple[TrialRow, ...]:
    with Store(path) as store:
        return store.trials()


@pytest.mark.parametrize("more_bytes", [8_192, 100_000])
def test_a_full_disk_is_one_line_and_loses_nothing(folder: Path, more_bytes: int) -> None:
    assert run(folder, most_bytes=None).code == 0
    empty_bytes = (folder / "autotune.db").stat().st_size
    (folder / "autotune.db").unlink()
    Store(folder / "autotune.db").close()
    full = run(folder, most_bytes=(folder / "autotune.db").stat().st_size + more_bytes)
    assert full.code == 1
    lines = full.err.splitlines()
    assert lines[-1].startswith("autotune: autotune.db: ")
    assert "disk" in lines[-1]
    assert "Traceback" not in full.err
    ended = [row.trial for row in stored(folder / "autotune.db") if row.ended_at]
    assert run(folder, most_bytes=None).code == 0
    assert [row.trial for row in stored(folder / "autotune.db")][: len(ended)] == ended
    assert len(stored(folder / "autotune.db")) >= 60
    assert (folder / "autotune.db").stat().st_size >= 0.9 * empty_bytes
