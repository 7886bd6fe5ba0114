"""Links, pipes and folders where an agent keeps its journals, or a run its lock: a line, and nothing of others lost."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import StoreError, StoreWarning
from autotune.tuning.study_lock import study_lock

needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")
if importlib.util.find_spec("distributed") is not None:
    from autotune.cluster.ledger import Ledger
    from tests.cluster.test_agent import Open, begin, leased, ledger, open_agent

    __all__ = ["begin", "ledger", "open_agent"]

VICTIM = "precious"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    victim = path.parent / "victim"
    victim.write_text(VICTIM)
    path.symlink_to(victim)


def circle(path: Path) -> None:
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.mkdir()


def left_by_an_agent(ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    agent.run(leased(ledger, agent))
    agent.close()


@needs_dask
@pytest.mark.timeout(60)
def test_what_is_no_file_in_a_journal_costs_that_journal(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    for name in ("lease", "trials.db"):
        for make in (pipe, device, circle, folder):
            left_by_an_agent(ledger, open_agent)
            (path,) = (tmp_path / "one").glob(f"*/{name}")
            path.unlink()
            make(path)
            with pytest.warns(StoreWarning, match="what was not delivered of an earlier lease is kept there") as warned:
                open_agent().close()
            assert "\n" not in str(warned[0].message)
            assert os.path.lexists(tmp_path / "one.left" / path.parent.name / name)


@needs_dask
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "make"),
    [
        *(("lock", make) for make in (pipe, device, link, folder)),
        ("blank.db", folder),
        *(("../one.left", make) for make in (pipe, link)),
    ],
)
def test_where_an_agent_cannot_keep_journals(
    name: str, make: Callable[[Path], None], tmp_path: Path, ledger: Ledger, open_agent: Open
) -> None:
    left_by_an_agent(ledger, open_agent)
    (lease,) = (tmp_path / "one").glob("*/lease")
    lease.write_bytes(b"noise")
    path = tmp_path / "one" / name
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(StoreError, match=r"^[^\n]*cannot be written: [^\n]*; set XDG_CACHE_HOME[^\n]*$"):
        open_agent()
    assert lease.read_bytes() == b"noise"
    if make is link:
        assert (path.parent / "victim").read_text() == VICTIM
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.warns(StoreWarning, match="is kept there"):
        open_agent()  # the lock is free


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
