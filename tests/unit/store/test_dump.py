"""A dump is the whole database as SQL, and a dump with an illegal statement loads nothing."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from autotune import __version__
from autotune.devices.device import Rate
from autotune.errors import StoreError
from autotune.problem import Layer
from autotune.store import Finals, Store, TemplateRecord, Verdict, dump, load, merge
from autotune.store.schema.migrations import newest_schema
from autotune.store.schema.tables import metadata
from autotune.trial import Config
from tests.long_run import every

from .builders import (
    CONV1,
    CONV2,
    DRIVER_590,
    H200,
    PROFILE,
    add_dispatcher,
    add_end_to_end,
    config_of,
    correct,
    dispatched,
    failed,
    open_scope,
    run_trial,
    source_of,
    study_of,
    timing_of,
)

DATA = Path(__file__).parents[2] / "data" / "databases"


def fill(store: Store) -> None:
    """Rows in every table."""
    scope = open_scope(store)
    for number in range(3):
        source = source_of(config_of(number))
        run_trial(store, scope, correct(number, 30.1 - number / 3, source=source), source)
    store.trials.add(scope, failed(3, message='it\'s "quoted"\t\x01\u2028\U0001f600; DROP TABLE trials;--'))
    store.trials.begin(scope, 4, config_of(4))
    store.finals.add(
        scope, Finals(winner=1, timings=((1, timing_of(28.5)),), verdicts=(Verdict("cudnn", "tie", 28.5, 28.6),))
    )
    add_end_to_end(store, 0, 2500.0)
    row = store.trials.list("lenet.conv1")[1]
    store.profiles.add(row, H200, DRIVER_590, [PROFILE])
    store.retimes.add(row, H200, DRIVER_590, "confirmed", timing_of(28.25))
    store.quarantine.add(scope, source_of(config_of(0)).hash, "hang", "")
    store.rates.add(H200, DRIVER_590, [Rate("copy", "16 bytes a thread", 4.2e12)])
    store.noise_floors.add(H200, DRIVER_590, "cold", 0.1, 0.002)
    add_dispatcher(store, [dispatched(CONV1), dispatched(CONV2, None)])


def dumped_text(path: Path) -> str:
    out = io.StringIO()
    dump(path, out.write)
    return out.getvalue()


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table and view, by names of columns."""
    raw = sqlite3.connect(path)
    names = raw.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'")
    found: dict[str, list[tuple[object, ...]]] = {}
    for (name,) in names.fetchall():
        cursor = raw.execute(f"SELECT * FROM {name}")
        found[name] = [tuple(column[0] for column in cursor.description), *cursor.fetchall()]
    raw.close()
    return found


@pytest.fixture
def dumped(store: Store) -> str:
    fill(store)
    return dumped_text(store.path)


def test_a_loaded_dump_is_the_same_database(store: Store, dumped: str) -> None:
    new = store.path.with_name("new.db")
    count = load(dumped, "dump", new)
    tables = {name: rows for name, rows in content(new).items() if name in metadata.tables}
    assert count == sum(len(rows) - 1 for rows in tables.values())
    assert all(len(rows) > 1 for rows in tables.values()), "the fixture fills every table"
    assert content(new) == content(store.path)
    assert dumped_text(new) == dumped
    with Store(new) as loaded:
        assert loaded.trials.list() == store.trials.list()
        assert loaded.best.list() == store.best.list()
        run_trial(loaded, open_scope(loaded), correct(5, 1.0))


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell")
def test_the_sqlite3_shell_loads_a_dump(store: Store, dumped: str) -> None:
    new = store.path.with_name("new.db")
    subprocess.run(["sqlite3", str(new)], input=dumped, text=True, check=True)
    assert content(new) == content(store.path)


def test_a_dump_goes_into_a_new_file(store: Store, dumped: str) -> None:
    before = content(store.path)
    with pytest.raises(StoreError, match=r"exists already; `load` creates a new database; give another --db"):
        load(dumped, "dump", store.path)
    assert content(store.path) == before


def test_a_dump_of_an_older_file_is_of_this_schema(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    old.write_bytes(gzip.decompress((DATA / "0012.db.gz").read_bytes()))
    text = dumped_text(old)
    assert text.startswith(f"-- autotune {__version__}, schema {newest_schema()}\n")
    assert load(text, "dump", tmp_path / "new.db") > 50


BAD = {
    "not authorized": "ATTACH 'other.db' AS other;",
    "not authorized ": "PRAGMA writable_schema = ON;",
    "not authorized  ": "DELETE FROM trials;",
    "not authorized   ": "CREATE TRIGGER t AFTER INSERT ON trials BEGIN SELECT 1; END;",
    "CHECK constraint failed": "INSERT INTO trials SELECT * FROM trials WHERE 0; "
    "INSERT INTO tuning_targets VALUES (99, 'nothing', NULL);",
    "cannot store TEXT value in INTEGER column": "INSERT INTO tuning_targets VALUES (99, 'layer', 'x');",
    "UNIQUE constraint failed": "INSERT INTO studies SELECT * FROM studies;",
    "syntax error": "INSERT INTO;",
    "no such table": "INSERT INTO elsewhere VALUES (1);",
}


@pytest.mark.parametrize("words", BAD)
def test_a_bad_dump_is_refused_whole(tmp_path: Path, dumped: str, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        load(dumped.replace("COMMIT;", f"{BAD[words]}\nCOMMIT;"), "my dump", tmp_path / "new.db")
    message = str(caught.value)
    assert message.startswith("my dump: not a dump of autotune (")
    assert words.strip() in message
    assert message.endswith("nothing was loaded")
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("INSERT INTO tuning_target_layers VALUES (77, 1);", "refers to a row of tuning_targets that does not exist"),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(tmp_path: Path, dumped: str, statement: str, words: str) -> None:
    with pytest.raises(StoreError, match=rf"my dump: the file is damaged \(.*{words}"):
        load(dumped.replace("COMMIT;", f"{statement}\nCOMMIT;"), "my dump", tmp_path / "new.db")
    assert not list(tmp_path.glob("new*"))


def test_what_is_not_a_dump_is_refused(tmp_path: Path, dumped: str) -> None:
    for text, words in (
        (dumped[: len(dumped) // 2], "not a dump|is empty"),
        ("", "the dump is empty"),
        ('{"autotune_dump": 1, "schema": "0007"}', "not a dump of autotune"),
        ("CREATE TABLE mine (id);", "another program's database"),
    ):
        with pytest.raises(StoreError, match=words):
            load(text, "dump", tmp_path / "new.db")
        assert not list(tmp_path.glob("new*"))


def test_nothing_in_a_dump_is_run(tmp_path: Path) -> None:
    """Text that is code in SQL, Python or a shell is restored as text."""
    layer = Layer("__import__('os').system('touch ran') $(touch ran); `touch ran`", CONV1.problem)
    with Store(tmp_path / "evil.db") as store:
        run_trial(store, open_scope(store, layer=layer), correct(0, 1.0))
    load(dumped_text(tmp_path / "evil.db"), "dump", tmp_path / "new.db")
    with Store(tmp_path / "new.db") as store:
        assert [row.layer for row in store.best.list()] == [layer]
    assert not list(tmp_path.glob("**/ran"))


@pytest.mark.parametrize(
    "text",
    every(
        2,
        [
            'it\'s "quoted"; DROP TABLE trials;--',
            "tab\tnew\nline\r\x01\x1b[31m\x7f",
            "é\u2028\U0001f600",
            "{}",
            "NULL",
            "%s ? :x",
        ],
    ),
    ids=["quotes", "control", "unicode", "json", "null", "binds"],
)
def test_any_text_in_every_field_is_moved_as_it_is(tmp_path: Path, text: str) -> None:
    """By a dump and by a merge, for any names, messages, configs, dates and kernels."""
    layer = Layer(text, CONV1.problem)
    environment = dataclasses.replace(DRIVER_590, driver=text, toolkit=text, flags=text, attributes={text: text})
    device = dataclasses.replace(H200, name=text)
    record = dataclasses.replace(study_of(text, [layer]), text=text)
    config = Config.of(text, {text: text})
    header = f"summary = {json.dumps(text, ensure_ascii=False)}".replace("\x7f", "\\u007f")  # TOML
    source = dataclasses.replace(source_of(config, text=text), config=config)
    with Store(tmp_path / "had.db") as store:
        scope = store.scopes.open(
            store.studies.begin(record), layer, device, environment, text, [TemplateRecord(text, text, header)]
        )
        trial = dataclasses.replace(correct(0, 1.0, source=source), config=config, reason=text, message=text)
        key = store.trials.begin(scope, 0, config, source, proposed_by=text)
        store.trials.end(key, trial)
        (row,) = store.trials.list(text)
        store.retimes.add(row, device, environment, "failed", None, text)
        store.profiles.add(row, device, environment, [dataclasses.replace(PROFILE, tool=text, entry=text)])
        store.quarantine.add(scope, source.hash, text, text)
        store.rates.add(device, environment, [Rate(text, text, 1.0)])
        had = store.trials.list(text)
    load(dumped_text(tmp_path / "had.db"), "dump", tmp_path / "new.db")
    assert content(tmp_path / "new.db") == content(tmp_path / "had.db")
    assert merge(tmp_path / "had.db", tmp_path / "merged.db").trials == 1
    with Store(tmp_path / "merged.db") as store:
        (row,) = store.trials.list(text)
        assert (row.trial, row.layer, row.device, row.environment) == (
            had[0].trial,
            had[0].layer,
            had[0].device,
            had[0].environment,
        )
        assert store.sources.get(source.hash) == source
        assert store.retimes.list(text)[0].message == text
    assert merge(tmp_path / "had.db", tmp_path / "merged.db").trials == 0
