"""The command line in this process, and a folder to run it in."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import settings

from autotune.cli import main
from tests.benchmarks.smaller_database import compact
from tests.fork_server import ForkServer
from tests.json_schema import command_of, schema

from .tiny import STUDY, Command, Finished, changed, write_family

settings.register_profile("tests", deadline=None)  # the time of an example depends on the load of the machine
settings.load_profile("tests")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a small study and the tiny family in `families`."""
    monkeypatch.chdir(tmp_path)
    return make_folder(tmp_path)


def make_folder(folder: Path) -> Path:
    """Put the small study and the tiny family into a folder."""
    write_family(folder / "families")
    (folder / "small.toml").write_text(changed(STUDY, ("trials = 10", 'trials = 10\ntemplates = ["tiny"]')))
    return folder


@pytest.fixture
def autotune(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `autotune WORDS...` in the folder."""

    def run(*words: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["autotune", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = capsys.readouterr()
        if "--json" in words and captured.out.startswith("["):
            assert_as_documented([str(word) for word in words], captured.out)
        return Finished(code, captured.out, captured.err)

    return run


_ROWS = 40  # rows of an answer that are validated


def assert_as_documented(words: Sequence[str], printed: str) -> None:
    """Validate every answer with `--json` against docs/schema.json, whichever test asked."""
    rows = json.loads(printed)
    command = command_of(words, rows[0]) if rows else None
    if command is None or importlib.util.find_spec("jsonschema") is None:
        return
    from jsonschema import Draft202012Validator

    found = Draft202012Validator({**schema(), "$ref": f"#/$defs/{quote(command)}"}).iter_errors(rows[:_ROWS])
    assert not [f"{command}: {list(error.path)}: {error.message}" for error in found]


@pytest.fixture
def tune(autotune: Command) -> Command:
    """Run `autotune tune small.toml` with the tiny family on the null device and further words."""

    def run(*words: object) -> Finished:
        return autotune("tune", "small.toml", "--family-dir", "families", "--device", "null", *words)

    return run


@pytest.fixture(scope="session")
def database(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database that the small study was tuned into."""
    folder = make_folder(tmp_path_factory.mktemp("filled"))
    done = fork_server.run(folder, "tune", "small.toml", "--family-dir", "families", "--device", "null:wrong=0.2")
    assert done.code == 0, done.err
    compact(folder / "autotune.db", folder / "one.db")
    return (folder / "one.db").read_bytes()


@pytest.fixture
def filled(folder: Path, database: bytes) -> Path:
    """A database with results in the working directory."""
    path = folder / "autotune.db"
    path.write_bytes(database)
    return path
