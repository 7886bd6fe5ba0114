"""A disk that is full while trials are stored: one line, nothing lost, and the run continues once there is space."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.store import Store, TrialRow
from tests.fork_server import ForkServer
from tests.long_run import long_run
from tests.unit.store.builders import written

WORDS = ("tune", "small.toml", "--family-dir", "families", "--device", "null", "--trials", "60")
FEW_TRIALS = 100_000  # bytes: enough for the first of them, not for all


def stored(path: Path) -> tuple[TrialRow, ...]:
    with Store(path) as store:
        return store.trials.list()


@pytest.mark.parametrize("more_bytes", [8_192, *long_run((FEW_TRIALS,))])
def test_a_full_disk_is_one_line_and_loses_nothing(folder: Path, fork_server: ForkServer, more_bytes: int) -> None:
    database = folder / "autotune.db"
    written(database)
    # A write that would make a file larger than the limit fails, as on a full disk.
    full = fork_server.start(folder, *WORDS, file_bytes=database.stat().st_size + more_bytes).finish()
    assert full.code == 1
    lines = full.err.splitlines()
    assert lines[-1].startswith("autotune: autotune.db: ")
    assert "disk" in lines[-1]
    assert "Traceback" not in full.err
    ended = [row.trial for row in stored(database) if row.ended_at]
    assert fork_server.run(folder, *WORDS).code == 0
    rows = stored(database)
    kept = {row.trial.number: row.trial for row in rows}
    assert [kept[trial.number] for trial in ended] == ended
    assert ended or more_bytes < FEW_TRIALS
    assert len(rows) >= 40
    assert all(row.ended_at for row in rows)
