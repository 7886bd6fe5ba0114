"""Files that commands write in place of a link, a device, a pipe or a user's file: none is followed or replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every

from .attack import attacked, refused

WRITES: Mapping[str, tuple[str, ...]] = {
    # the file, and the command that writes it
    "page.html": ("report", "small", "--out", "page.html"),
    "kernel.cu": ("source", "small.one", "--out", "kernel.cu"),
    "all.jsonl": ("dump", "all.jsonl"),
    "own.toml": ("new-op", "own"),
}
THERE: Mapping[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("outside/victim"),
    "a link to nothing": lambda path: path.symlink_to("outside/made"),
    "a device": lambda path: path.symlink_to("/dev/null"),  # the target of /dev/stdout
    "a pipe": os.mkfifo,
}


@pytest.fixture
def outside(filled: Path) -> Path:
    """A folder with the database and a file that must not be written."""
    folder = filled.parent / "outside"
    folder.mkdir()
    (folder / "victim").write_text("mine")
    return folder


def identity(path: Path) -> tuple[int, int, int]:
    """What kind of file it is, and when it was written; the time when a link was last followed does not matter."""
    status = os.lstat(path)
    return status.st_mode, status.st_ino, status.st_mtime_ns


@pytest.mark.parametrize("name", every(3, WRITES))
@pytest.mark.parametrize("kind", every(2, THERE))
def test_what_is_no_file_is_not_written_over(name: str, kind: str, outside: Path, fork_server: ForkServer) -> None:
    path = outside.parent / name
    THERE[kind](path)
    before = identity(path)
    line = refused(attacked(fork_server, outside.parent, *WRITES[name], within_s=20), name)
    assert "is not a regular file; give another " in line or "exists already" in line
    assert identity(path) == before
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("victim", "mine")]
    assert not (outside.parent / "own").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(("report", "small", "--out"), ("source", "small.one", "--out")),
        ("dispatch", "small.toml", "--device", "null", "--out"),
    ],
    ids=lambda words: words[0],
)
def test_no_results_are_written_over(words: tuple[str, ...], filled: Path, fork_server: ForkServer) -> None:
    before = filled.read_bytes()
    done = attacked(fork_server, filled.parent, *words, filled.name, within_s=20)
    refused(done, f"{filled.name}: is an SQLite database, which would be lost; give another {words[-1]}")
    assert filled.read_bytes() == before


def test_a_dispatcher_is_not_written_over_its_study(filled: Path, fork_server: ForkServer) -> None:
    study = filled.parent / "small.toml"
    before = study.read_text()
    done = attacked(fork_server, filled.parent, "dispatch", study.name, "--device", "null", "--out", f"./{study.name}")
    refused(done, "small.toml: is the study itself; give another --out")
    assert study.read_text() == before


@pytest.mark.parametrize("kind", every(2, THERE))
def test_a_name_beside_it_is_somebody_elses(kind: str, outside: Path, fork_server: ForkServer) -> None:
    beside = outside.parent / "page.html.part"
    THERE[kind](beside)
    before = identity(beside)
    assert attacked(fork_server, outside.parent, *WRITES["page.html"], within_s=20).code == 0
    assert identity(beside) == before
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("victim", "mine")]
    assert (outside.parent / "page.html").read_text().startswith("<!doctype html>")


def test_a_file_that_does_not_fit_leaves_the_one_before(outside: Path, fork_server: ForkServer) -> None:
    page = outside.parent / "page.html"
    page.write_text("before")
    run = fork_server.start(outside.parent, *WRITES["page.html"], file_bytes=10_000)
    ended = run.finish()
    assert (ended.code, page.read_text()) == (1, "before"), ended.err
    assert ended.err == "autotune: page.html: cannot be written: File too large; give another --out\n"
    shutil.rmtree(outside)
    assert sorted(each.name for each in outside.parent.iterdir()) == [
        "autotune.db",
        "families",
        "page.html",
        "small.toml",
    ]
