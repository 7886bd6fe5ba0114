"""`doctor`: missing requirements are listed with the way to install them, and the command exits with 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .tiny import Command


def rows(text: str) -> dict[str, dict[str, str | None]]:
    """The answer's rows by their subject."""
    return {row["what"]: row for row in json.loads(text)}


@pytest.mark.cxx
def test_what_is_here_is_ok(folder: Path, autotune: Command) -> None:
    done = autotune("doctor", "--json")
    found = rows(done.out)
    assert {found[what]["state"] for what in ("C++ compiler", "cache", "temporary files", "database")} == {"ok"}
    assert found["database"]["found"] == "autotune.db: none yet"
    gpu = found["GPU"]["state"] == "ok"
    assert found["PyCUDA"]["state"] in (("ok", "missing") if gpu else ("ok", "optional"))
    assert not (folder / "autotune.db").exists()


def test_what_is_missing_is_named_with_what_brings_it(
    folder: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    (folder / "autotune.db").write_text("no database, and long enough to be taken for one " * 20)
    done = autotune("doctor", "--json")
    assert (done.code, done.err) == (1, "autotune: needed and missing: C++ compiler, cache, database\n")
    found = rows(done.out)
    assert str(found["C++ compiler"]["fix"]).startswith("CXX=/nothing: is not a program that can be run")
    assert "set XDG_CACHE_HOME to a folder" in str(found["cache"]["fix"])


def test_a_filled_database_is_counted(filled: Path, autotune: Command) -> None:
    assert rows(autotune("doctor", "--json").out)["database"]["found"] == "autotune.db: 1 study"
