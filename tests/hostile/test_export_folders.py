"""Exports into folders with a user's files or earlier exports: only files of an export are replaced."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.exporting.folder import write_folder
from tests.exports import contents
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


def test_a_kernel_that_is_exported_no_more_goes(exported: Path, autotune: Command) -> None:
    (exported / "notes.txt").write_text("mine")
    other_study(exported.parent)
    assert autotune("export", "other", "--out", "out", "--no-proof").code == 0
    assert not (exported / "small.one.null.cu").exists()
    assert (exported / "notes.txt").read_text() == "mine"


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
        2,
        (
            b"",
            b"\xff",
            b"null",
            b'{"autotune": 1}',
        ),
    ),
)
def test_a_provenance_that_is_none_is_somebody_elses_file(exported: Path, autotune: Command, content: bytes) -> None:
    (exported / "provenance.json").write_bytes(content)
    before = everything(exported)
    refused(autotune(*EXPORT), "out/provenance.json: is not a file of an export, and would be lost")
    assert everything(exported) == before


@pytest.mark.parametrize("is_there", [False, True])
def test_an_interrupted_export_leaves_a_folder_that_the_next_one_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    names = ["a.cu", "b.cu", "python/c.py"]
    old, new = ({name: f"{age} {name}" for name in names} for age in ("old", "new"))
    provenance = {"autotune": "1", "kernels": []}
    replace = Path.replace
    for moved in range(len(names) + 1):  # the provenance, too
        folder = tmp_path / str(moved)
        if is_there:
            write_folder(folder, old, provenance)
        left = iter(range(moved))

        def interrupted(self: Path, target: Path, left: Iterator[int] = left) -> Path:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return replace(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", interrupted)
            patched.setattr(Path, "rename", interrupted)
            if is_there or not moved:
                with pytest.raises(KeyboardInterrupt):
                    write_folder(folder, new, provenance)
        write_folder(folder, new, provenance)
        assert {name: (folder / name).read_text() for name in names} == new
        assert not list(folder.rglob(".autotune-*"))
