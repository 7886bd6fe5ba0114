"""Links, pipes and folders in the place of a run's lock: one line, and no user's file is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.api.run import study_lock
from autotune.errors import StoreError

VICTIM = "precious"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    victim = path.parent / "victim"
    victim.write_text(VICTIM)
    path.symlink_to(victim)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [pipe, link, folder])
def test_a_studys_lock_is_no_link_and_no_pipe(make: Callable[[Path], None], tmp_path: Path) -> None:
    with study_lock(tmp_path / "locks", "a study", waits=pytest.fail):
        (lock,) = (tmp_path / "locks").iterdir()
    lock.unlink()
    make(lock)
    with pytest.raises(StoreError, match="cannot be written"), study_lock(lock.parent, "a study", waits=pytest.fail):
        pass
    if make is link:
        assert (lock.parent / "victim").read_text() == VICTIM
