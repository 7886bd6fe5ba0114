"""Exports into folders with a user's files or earlier exports: only files of an export are replaced."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.exports import contents
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.tiny import Command

from .attack import refused

EXPORT = ("export", "small", "--out", "out", "--no-proof")


@pytest.fixture
def exported(folder: Path, filled: Path, autotune: Command) -> Path:
    """A folder with an export, and a user's file next to it."""
    assert autotune(*EXPORT).code == 0
    (folder / "outside").mkdir()
    (folder / "outside" / "victim").write_text("mine")
    return folder / "out"


def everything(folder: Path) -> dict[str, bytes | str]:
    """The content of every file and the target of every link."""
    links = {str(path): str(path.readlink()) for path in folder.rglob("*") if path.is_symlink()}
    return {**contents(folder), **links}


def other_study(folder: Path) -> None:
    """Rename the database's study, so that its kernel has another file name."""
    with closing(sqlite3.connect(folder / "autotune.db")) as database, database:
        database.execute("UPDATE studies SET name = 'other'")


@pytest.mark.parametrize(
    "names",
    [
        ["README.md"],
        ["small.one.null.cu"],
        ["python/autotune_runtime/interface.py", "conv2d.map", "kernels.cmake"],
    ],
)
def test_files_that_were_edited_are_kept_and_named(exported: Path, autotune: Command, names: list[str]) -> None:
    for name in names:
        text = (exported / name).read_text()
        (exported / name).write_text(text.replace(" ", "  ", 1))
    before = everything(exported)
    refused(autotune(*EXPORT), "edited", *(f"out/{name}" for name in names))
    assert everything(exported) == before
    for name in names:
        (exported / name).rename(exported / f"{name}.mine")
    assert autotune(*EXPORT).code == 0, "the others are an export's own"


def test_an_edited_kernel_that_is_exported_no_more_is_left(exported: Path, autotune: Command) -> None:
    (exported / "small.one.null.cu").write_text("// faster")
    other_study(exported.parent)
    done = autotune("export", "other", "--out", "out", "--no-proof")
    assert done.code == 0
    assert "out/small.one.null.cu: kept, because it was edited after it was exported\n" in done.err
    assert (exported / "small.one.null.cu").read_text() == "// faster"
    assert (exported / "other.one.null.cu").exists()


def test_a_kernel_that_is_exported_no_more_goes(exported: Path, autotune: Command) -> None:
    (exported / "notes.txt").write_text("mine")
    other_study(exported.parent)
    assert autotune("export", "other", "--out", "out", "--no-proof").code == 0
    assert not (exported / "small.one.null.cu").exists()
    assert (exported / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("README.md", "../outside/victim"),
        ("small.one.null.cu", "../outside/made"),
        ("provenance.json", "../outside/victim"),
        ("proof.txt", "../outside/victim"),
        ("python", "../outside"),
        ("python/autotune_runtime", "../../outside"),
    ],
)
@pytest.mark.parametrize("earlier", every(2, [True, False]))
def test_no_link_is_followed(exported: Path, autotune: Command, name: str, target: str, earlier: bool) -> None:
    if not earlier:
        shutil.rmtree(exported)
    path = exported / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)
    before = everything(exported.parent)
    refused(autotune(*EXPORT), f"out/{name}: ")
    assert everything(exported.parent) == before


def test_a_folder_that_is_a_link_is_written_where_it_leads(exported: Path, autotune: Command) -> None:
    plain = contents(exported)
    exported.rename(exported.parent / "real")
    exported.symlink_to("real")
    assert autotune(*EXPORT).code == 0
    assert exported.is_symlink()
    assert contents(exported) == plain


@pytest.mark.parametrize("name", ["../outside/victim", "python/../../outside/victim", "absolute"])
def test_a_forged_provenance_costs_no_file_outside_the_folder(exported: Path, autotune: Command, name: str) -> None:
    name = str(exported.parent / "outside" / "victim") if name == "absolute" else name
    provenance = json.loads((exported / "provenance.json").read_bytes())
    provenance["sha256"][name] = hashlib.sha256(b"mine").hexdigest()
    (exported / "provenance.json").write_text(json.dumps(provenance))
    assert autotune(*EXPORT).code == 0
    assert (exported.parent / "outside" / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    every(
        3,
        (
            b"",
            b"[" * 100_000,
            b'{"sha256": {"a": ' + b"9" * 5000 + b"}}",
            b"\xff",
            b"null",
            b'{"autotune": 1}',
            b"{}" * 9,
        ),
    ),
)
def test_a_provenance_that_is_none_is_somebody_elses_file(exported: Path, autotune: Command, content: bytes) -> None:
    (exported / "provenance.json").write_bytes(content)
    before = everything(exported)
    refused(autotune(*EXPORT), "out/provenance.json: is not a file of an export, and would be lost")
    assert everything(exported) == before


@pytest.mark.parametrize("earlier", [True, False])
def test_two_exports_at_once_leave_a_folder_that_later_ones_accept(
    exported: Path, autotune: Command, fork_server: ForkServer, earlier: bool
) -> None:
    plain = contents(exported)
    for _ in range(2):
        if not earlier:
            shutil.rmtree(exported)
        runs = [fork_server.start(exported.parent, *EXPORT) for _ in range(2)]
        assert [run.finish().code for run in runs] == [0, 0]
        assert contents(exported) == plain
    assert autotune(*EXPORT).code == 0
    assert not [path.name for path in exported.parent.iterdir() if path.name.startswith(".")]


def test_an_export_that_is_killed_leaves_a_folder_that_later_ones_accept(
    exported: Path, autotune: Command, fork_server: ForkServer
) -> None:
    plain = contents(exported)
    for delay_ms in range(50, 500, 90):
        run = fork_server.start(exported.parent, *EXPORT)
        time.sleep(delay_ms / 1000)
        if not run.ended:
            run.send_signal(signal.SIGKILL)
        run.finish()
        assert json.loads((exported / "provenance.json").read_bytes())["kernels"]
    for left in exported.glob(".autotune-*"):
        shutil.rmtree(left)
    assert autotune(*EXPORT).code == 0
    assert contents(exported) == plain
