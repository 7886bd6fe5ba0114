"""Every command that only reads or refuses leaves the database file byte for byte as it was."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import pytest

from autotune.cli import cli
from autotune.cli.output import WITHOUT_DATABASE
from autotune.errors import StoreWarning
from autotune.store import Store
from tests.long_run import every

from .permissions import read_only
from .store.builders import CONV1, open_scope, written
from .test_analysis_commands import change
from .tiny import STUDY, Command

DATA = Path(__file__).parents[1] / "data" / "databases"
DB = ("--db", "kept/a.db")
NULL = ("--family-dir", "families", "--device", "null")
READING: tuple[tuple[str, ...], ...] = (
    ("best",),
    ("best", "lenet", "--device", "H200"),
    ("trials",),
    ("trials", "lenet", "--all"),
    ("show", "lenet.conv1", "0"),
    ("why", "lenet.conv1"),
    ("report", "lenet", "--out", "report.html"),
    ("history", "lenet"),
    ("diff", "lenet", "copy"),
    ("stale",),
    ("studies",),
    ("query", "SELECT count(*) FROM trials"),
    ("dump",),
    ("dump", "dumped"),
    ("clean",),
    ("clean", "--quarantine"),
    ("source", "lenet.conv1", "--device", "H200"),
    ("profile", "lenet", "--stored"),
    ("devices",),
    ("doctor",),
)
"""which exit with 0"""
REFUSING: tuple[tuple[str, ...], ...] = (
    ("best", "nothing"),
    ("query", "DELETE FROM trials"),
    ("dispatch", "lenet", "--explain"),
    ("importance", "lenet"),
    ("export", "lenet", "--out", "out", "--no-proof", "--device", "none such"),
    ("profile", "lenet", "--device", "null"),
    ("tune", "small.toml", *NULL, "--baseline", "cudnn"),
    ("tune", "small.toml", *NULL, "--family", "none"),
    ("tune", "small.toml", "--family-dir", "families", "--device", "cuda:99"),
    ("ladder", "small.toml", *NULL),
    ("retime", "nothing", *NULL),
    ("merge", "small.toml"),
    ("merge", "kept/a.db"),
    ("merge", "none.db"),
    ("load", "small.toml"),
    ("load", "whole.sql"),
)
"""which exit with 1"""
OPENING: tuple[tuple[str, ...], ...] = (
    ("tune", "grouped.toml", *NULL, "--family", "tiny"),
    ("tune", "huge.toml", *NULL),
    ("compare", "small.toml", *NULL),
    ("compare", "lenet.toml", *NULL),
    ("dispatch", "small.toml", *NULL),
    ("retime", "lenet", *NULL),
)
"""which exit with 1 once they have opened the database for writing"""
HEADER = """
[params]
block_p = { values = [0, 1, 2, 3] }
filters = { values = ["constant"] }
vector = { values = [false, true] }
"""
STATES = ("with a log", "as one file", "old", "read-only")


@pytest.fixture
def kept(folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with nothing but a database in one of STATES."""
    kept = folder / "kept"
    kept.mkdir()
    path = kept / "a.db"
    path.write_bytes(gzip.decompress((DATA / "0012.db.gz").read_bytes()))
    change(path, f"UPDATE templates SET header = '{HEADER}'")  # these files have none
    for name, edit in (
        ("lenet", ("", "")),
        ("grouped", ("c = 2", "c = 2\ngroups = 2")),
        ("huge", ("n = 3", "n = 300_000_000")),
    ):
        (folder / f"{name}.toml").write_text(STUDY.replace('"small"', f'"{name}"').replace(*edit))
    (folder / "whole.sql").write_text("BEGIN TRANSACTION;\nCOMMIT;\n")
    if request.param == "old":
        yield kept
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        written(path)
    with Store(path) as store:
        store.quarantine.clear()  # so that `clean --quarantine` has nothing to remove
    for copy in kept.glob("a.schema-*"):
        copy.unlink()
    if request.param == "with a log":
        _leave_log(path)
    with read_only(kept) if request.param == "read-only" else nullcontext():
        yield kept


def _leave_log(path: Path) -> None:
    """Leave the files of a killed writer."""
    with Store(path) as store:
        open_scope(store, study="another", layer=CONV1)
        left = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")}
    for suffix, content in left.items():
        Path(f"{path}{suffix}").write_bytes(content)
    assert left["-wal"]


@contextmanager
def untouched(kept: Path, words: tuple[str, ...]) -> Iterator[None]:
    """Assert that the files of a folder keep their names, content and, except for a log's index, their date."""

    def state() -> dict[str, tuple[bytes, int]]:
        return {
            path.name: (b"", 0) if path.name.endswith("-shm") else (path.read_bytes(), path.stat().st_mtime_ns)
            for path in kept.iterdir()
        }

    before = state()
    yield
    assert state() == before, words


@pytest.mark.parametrize("kept", every(len(STATES), reversed(STATES)), indirect=True)
def test_a_command_that_reads_changes_nothing(kept: Path, autotune: Command) -> None:
    for words in READING:
        with untouched(kept, words):
            ended = autotune(*words, *DB)
        assert ended.code == 0, (words, ended.err)


@pytest.mark.parametrize("kept", every(len(STATES), STATES), indirect=True)
def test_a_command_that_refuses_changes_nothing(kept: Path, autotune: Command) -> None:
    for words in REFUSING:
        with untouched(kept, words):
            ended = autotune(*words, *(() if "--db" in words else DB))
        assert ended.code == 1, (words, ended.err)
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("kept", ["with a log"], indirect=True)
def test_a_run_that_refuses_stores_no_trial(kept: Path, autotune: Command) -> None:
    def trials() -> object:
        with Store(kept / "a.db", create=False) as store:
            return store.query("SELECT * FROM trials").rows

    before = trials()
    for words in OPENING:
        assert autotune(*words, *DB).code == 1, words
        assert trials() == before, words


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_reading_makes_no_file(words: tuple[str, ...], folder: Path, autotune: Command) -> None:
    autotune(*words, "--db", "none.db")
    assert not list(folder.glob("none.db*"))


def test_every_command_is_among_these() -> None:
    writing = {"tune", "compare", "ladder", "dispatch", "retime", "merge", "load"}
    assert {words[0] for words in (*REFUSING, *OPENING)} >= writing
    assert {words[0] for words in (*READING, *REFUSING, *OPENING)} | WITHOUT_DATABASE == set(
        cli.list_commands(click.Context(cli))
    )
