"""A bad database causes one clear line: what is wrong, where, and what to do."""

from __future__ import annotations

import ast
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import optuna
import pytest

import autotune.store as store_package
from autotune.errors import StoreError
from autotune.store import Store
from autotune.store.schema.migrations import newest_schema
from tests.benchmarks.smaller_database import compact
from tests.long_run import every

from .builders import CONV1, config_of, correct, failed, open_scope, run_trial, source_of, written


def message_of(url: str | Path, *, create: bool) -> str:
    """The error message of opening the file."""
    with pytest.raises(StoreError) as caught:
        Store(url, create=create, timeout_s=0.2)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    return message


@pytest.fixture(params=[True, False], ids=["writing", "reading"])
def create(request: pytest.FixtureRequest) -> bool:
    """Both ways to open."""
    return bool(request.param)


def test_a_folder(tmp_path: Path, create: bool) -> None:
    assert message_of(tmp_path, create=create).startswith(f"{tmp_path}: is a folder; give the path of a file")


def test_a_folder_that_is_not_there(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "no" / "a.db"
    assert message_of(path, create=create) == f"{path}: there is no folder {path.parent}; create it first"
    assert not path.parent.exists()


def test_a_file_as_a_folder(tmp_path: Path, create: bool) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in message_of(tmp_path / "file" / "a.db", create=create)


def test_no_file_to_read(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert message_of(path, create=False) == f"{path}: no such file; `autotune tune STUDY --db {path}` creates it"
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_begins_with_two_slashes(tmp_path: Path) -> None:
    """SQLite takes the text after the two slashes of a URI for a host name."""
    with Store(f"/{tmp_path}/results.db") as store:
        open_scope(store)
    assert (tmp_path / "results.db").is_file()


def test_an_empty_file_is_filled_but_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    assert message_of(path, create=False).startswith(f"{path}: the database is empty")
    written(path)
    Store(path, create=False).close()


@pytest.mark.parametrize("content", [b'name = "lenet"\n', b"\0" * 4096, b"SQLite format 2\0" + b"\0" * 4096, b"S"])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, create: bool, content: bytes) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    assert message_of(path, create=create).startswith(f"{path}: not an SQLite file; give the path of a results")
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["study.toml"]


def test_something_that_is_not_a_file(tmp_path: Path, create: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in message_of(tmp_path / "pipe", create=create)


def filled(path: Path) -> bytes:
    """The bytes of a database with trials in it, as one file."""
    with Store(path.with_name("filled.db")) as store:
        scope = open_scope(store)
        for number in range(40):
            source = source_of(config_of(number))
            run_trial(store, scope, correct(number, 10.0, source=source), source)
    compact(path.with_name("filled.db"), path)
    return path.read_bytes()


@pytest.mark.parametrize("kept", every(2, [20, 100, 5000, 0.5, 0.99]))
def test_a_file_cut_short(tmp_path: Path, create: bool, kept: float) -> None:
    path = tmp_path / "a.db"
    content = filled(path)
    path.write_bytes(content[: int(kept if kept >= 1 else kept * len(content))])
    message = message_of(path, create=create)
    assert message.startswith(f"{path}: ")
    assert "the file is damaged" in message or "not an SQLite file" in message


def test_damage_inside_is_one_line_wherever_it_is_met(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "a.db"
    content = filled(path)
    met = 0
    for start in range(100, len(content), 4096 * 2):
        path.write_bytes(content[:start] + b"\xff" * 3000 + content[start + 3000 :])
        message = damage_met(path, create=create)
        if message is not None:
            met += 1
            assert message.startswith(str(path))
            assert message.isprintable()
    assert met > 3


def damage_met(path: Path, *, create: bool) -> str | None:
    """The message of the first query that reads the damage."""
    try:
        with Store(path, create=create) as store:
            store.trials.list()
            store.best.list()
            store.query("SELECT * FROM results JOIN sources ON sources.hash = source_hash")
            if create:
                open_scope(store)
    except StoreError as error:
        return str(error)
    return None


def test_another_programs_database(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("CREATE TABLE trials (id)")
    raw.close()
    before = path.read_bytes()
    assert message_of(path, create=create) == (
        f"{path}: another program's database, not a results database of autotune; name another database"
    )
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_an_optuna_storage(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "optuna.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    storage.engine.dispose()
    assert message_of(path, create=create).startswith(f"{path}: an Optuna storage, not a results database")


def test_a_newer_schema(path: Path, store: Store, create: bool) -> None:
    store.close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("INSERT INTO schema_versions VALUES (42, '3.1.4', '2027-01-01T00:00:00Z')")
    raw.close()
    newer = f"{path}: schema 42 is newer than this autotune's {newest_schema()}; install autotune 3.1.4 or newer"
    assert message_of(path, create=create) == newer


def test_a_schema_that_was_never_released(path: Path, create: bool) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("CREATE TABLE schema_versions (version)")
        raw.execute("CREATE TABLE alembic_version (version_num)")
        raw.execute("INSERT INTO alembic_version VALUES ('0007')")
    raw.close()
    before = path.read_bytes()
    assert message_of(path, create=create) == f"{path}: schema 0007 was never released; only 0012 can be read"
    assert path.read_bytes() == before


def test_nothing_in_the_store_runs_what_it_reads() -> None:
    """No pickle, no eval: the content of a database is data."""
    package = Path(store_package.__file__ or "").parent
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                names |= {node.module.split(".")[0]} if isinstance(node, ast.ImportFrom) and node.module else set()
                assert not names & {"pickle", "marshal", "shelve", "dill", "yaml", "PickleType"}, file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, file


def test_a_schema_without_its_version(path: Path, store: Store, create: bool) -> None:
    store.close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("DELETE FROM schema_versions")
    raw.close()
    assert "the schema's version is missing" in message_of(path, create=create)


def test_a_lock_held_too_long(path: Path, store: Store) -> None:
    scope = open_scope(store)
    raw = sqlite3.connect(path, isolation_level=None)
    with Store(path, timeout_s=0.1) as waiting:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError) as caught:
            waiting.trials.add(scope, failed(0))
        assert str(caught.value).startswith(f"{path}: locked by another process for more than 0.1 s")
        assert waiting.trials.history(scope) == (), "readers do not wait"
        raw.execute("COMMIT")
        waiting.trials.add(scope, failed(0))
    raw.close()


def test_an_exclusive_lock_while_opening(path: Path, create: bool) -> None:
    filled(path)
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("BEGIN EXCLUSIVE")
    assert "locked by another process" in message_of(path, create=create)
    raw.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://host/db", "give its path"),
        ("sqlite:///a.db", "give its path"),
        ("", "in memory"),
        (":memory:", "in memory"),
    ],
)
def test_a_url_that_is_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: bool, url: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in message_of(url, create=create)
    assert list(tmp_path.iterdir()) == []


def test_a_name_too_long(tmp_path: Path, create: bool) -> None:
    assert "File name too long" in message_of(tmp_path / ("x" * 300), create=create)


@pytest.mark.parametrize("name", ["a.db", "with space?and#%41.db", "ünïcode.db"])
def test_a_name_may_have_any_character(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Store(str(path)) as store:
        open_scope(store, layer=CONV1)
    assert path.exists()
    with Store(path, create=False) as store:
        assert len(store.studies.layers()) == 2


def test_a_store_that_was_closed_is_not_opened_again(path: Path, blank: bytes, create: bool) -> None:
    path.write_bytes(blank)
    with Store(path, create=create) as store:
        store.studies.list()
    closed = pytest.raises(StoreError, match=r"autotune.db: is closed; open it again")
    with closed:
        store.studies.list()
    with closed:
        store.query("SELECT 1")
    with closed:
        open_scope(store)
