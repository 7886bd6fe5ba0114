"""A dump is the whole database, and a bad line loads nothing."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import StoreError
from autotune.measurement.rates import Rate
from autotune.problem import Layer
from autotune.store import Finals, Store, TemplateRecord, Verdict, dump, load, merge
from autotune.store.sqlite.schema import newest_schema
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
    study_record,
    timing_of,
)

DATA = Path(__file__).parents[2] / "data" / "databases"


def fill(store: Store) -> None:
    """Something in every table."""
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


def lines_of(path: Path) -> list[str]:
    out = io.StringIO()
    dump(path, out.write)
    return out.getvalue().splitlines(keepends=True)


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
def dumped(store: Store) -> list[str]:
    fill(store)
    return lines_of(store.path)


def test_a_loaded_dump_is_the_same_database(store: Store, dumped: list[str]) -> None:
    new = store.path.with_name("new.db")
    count = load(dumped, "dump", new)
    assert count == len(dumped) - 2 == sum(len(rows) - 1 for rows in tables_of(content(new)).values())
    assert content(new) == content(store.path)
    assert lines_of(new) == dumped
    with Store(new) as loaded:
        assert loaded.trials.list() == store.trials.list()
        assert loaded.best.list() == store.best.list()
        run_trial(loaded, open_scope(loaded), correct(5, 1.0))


def tables_of(found: dict[str, list[tuple[object, ...]]]) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: rows for name, rows in found.items() if name not in ("results", "best", "best_trials", "alembic_version")
    }


def test_every_table_is_in_a_dump(store: Store, dumped: list[str]) -> None:
    assert {json.loads(line).get("table") for line in dumped} - {None} == (tables_of(content(store.path)).keys())


def test_an_empty_database_takes_a_dump_and_one_with_results_does_not(
    tmp_path: Path, blank: bytes, dumped: list[str]
) -> None:
    path = tmp_path / "blank.db"
    path.write_bytes(blank)
    load(dumped, "dump", path)
    before = lines_of(path)
    with pytest.raises(StoreError, match=f"{path}: has results already; load into a new file"):
        load(dumped, "dump", path)
    assert lines_of(path) == before == dumped


def test_a_dump_of_an_older_file_is_of_this_schema(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    old.write_bytes(gzip.decompress((DATA / "0002.db.gz").read_bytes()))
    lines = lines_of(old)
    assert json.loads(lines[0])["schema"] == newest_schema()
    assert load(lines, "dump", tmp_path / "new.db") > 50


def test_a_dump_of_an_older_schema_is_loaded_and_brought_up_to_date(tmp_path: Path) -> None:
    row = {"id": 7, "driver": "580", "toolkit": "nvcc", "flags": "", "first_seen_at": "2026-11-20T00:00:00.000000Z"}
    rates = {
        "id": 1,
        "device_id": 1,
        "environment_id": 7,
        "name": "copy",
        "per_s": 1,
        "measured_at": row["first_seen_at"],
    }
    device = json.loads(next(line for line in lines_of_filled(tmp_path) if '"devices"' in line))["row"]
    lines = [
        json.dumps(record)
        for record in (
            {"autotune_dump": 1, "schema": "0002", "autotune": "0.1.0"},
            {"table": "environments", "row": row},
            {"table": "rates", "row": rates},
            {"table": "devices", "row": device},
            {"end": 3},
        )
    ]
    load(lines, "dump", tmp_path / "new.db")
    with Store(tmp_path / "new.db", create=False) as store:
        rows = store.query(
            "SELECT per_s, origin, driver, method FROM rates JOIN environments ON environments.id = 7"
        ).rows
        assert rows == ((1.0, "measured", "580", "16 bytes a thread"),)


def test_a_dump_with_a_table_that_has_another_name_now_is_loaded(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    old.write_bytes(gzip.decompress((DATA / "0007.db.gz").read_bytes()))
    raw = sqlite3.connect(old)
    raw.row_factory = sqlite3.Row
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'alembic_version'"
    records = [
        {"table": name, "row": {column: packed(row[column]) for column in row.keys()}}  # noqa: SIM118 - of sqlite3.Row
        for (name,) in raw.execute(names).fetchall()
        for row in raw.execute(f"SELECT * FROM {name}")
    ]
    raw.close()
    header = {"autotune_dump": 1, "schema": "0007", "autotune": "0.1.0"}
    load([json.dumps(record) for record in (header, *records, {"end": len(records)})], "dump", tmp_path / "new.db")
    with Store(tmp_path / "new.db", create=False) as store:
        assert store.query("SELECT kernel_us, host_bytes FROM end_to_end_timings").rows == ((27.5, 2_000_000),)


def packed(value: object) -> object:
    """A cell as a dump writes it."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def lines_of_filled(folder: Path) -> list[str]:
    with Store(folder / "filled.db") as store:
        fill(store)
        return lines_of(store.path)


def changed(line: str, **cells: object) -> str:
    record = json.loads(line)
    return json.dumps({**record, "row": {**record["row"], **cells}}) + "\n"


BAD: dict[str, Callable[[str], str]] = {
    "not JSON": lambda line: line[:-9] + "\n",
    "not a JSON object": lambda _line: "[1]\n",
    "expected a row of one of": lambda line: line.replace('"layers"', '"payers"'),
    "columns hh are missing or unknown": lambda line: changed(line, hh=1),
    "columns q, qq are missing": lambda line: line.replace('"q":', '"qq":'),
    'n = "100": expected INTEGER': lambda line: changed(line, n="100"),
    "n = true: expected INTEGER": lambda line: changed(line, n=True),
    "flops = null: expected INTEGER": lambda line: changed(line, flops=None),
    "n = 1.5: expected INTEGER": lambda line: changed(line, n=1.5),
    "n = 1.1805916207174113e+21: expected INTEGER": lambda line: changed(line, n=2**70),
    "dtype = 32: expected TEXT": lambda line: changed(line, dtype=32),
    "not JSON (invalid high surrogate": lambda line: changed(line, dtype="\udcff"),
    "UNIQUE constraint failed": lambda line: line + line,
}


@pytest.mark.parametrize("words", BAD)
def test_a_bad_line_is_named_and_nothing_is_loaded(tmp_path: Path, dumped: list[str], words: str) -> None:
    at = next(number for number, line in enumerate(dumped) if '"layers"' in line)
    lines = list(dumped)
    lines[at] = BAD[words](lines[at])
    path = tmp_path / "new.db"
    with pytest.raises(StoreError) as caught:
        load("".join(lines).splitlines(keepends=True), "my dump", path)
    message = str(caught.value)
    assert message.startswith(f"my dump:{at + 1 + ('UNIQUE' in words)}: ")
    assert words in message
    assert message.isprintable()
    assert message.endswith("nothing was loaded")
    assert not list(tmp_path.glob("new*"))


def test_rows_that_do_not_belong_together_are_refused(tmp_path: Path, blank: bytes, dumped: list[str]) -> None:
    wrong = [changed(line, subject_id=99) if '"finals"' in line and '"winner' in line else line for line in dumped]
    path = tmp_path / "blank.db"
    path.write_bytes(blank)
    with pytest.raises(StoreError, match="my dump: finals row 1: subject_id = 99: subjects has no such row"):
        load(wrong, "my dump", path)
    with Store(path, create=False) as store:
        assert store.studies.list() == ()
        assert store.query("SELECT count(*) FROM devices").rows == ((0,),)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (slice(0, -1), "cut short: its last line"),
        (slice(0, 20), "cut short: its last line"),
        (slice(0, 0), "1: not a dump of autotune"),
        (slice(1, None), "1: not a dump of autotune"),
    ],
)
def test_a_dump_cut_short_is_refused(tmp_path: Path, dumped: list[str], cut: slice, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        load(dumped[cut], "dump", tmp_path / "new.db")
    del dumped[9]
    with pytest.raises(StoreError, match=f"the dump had {len(dumped) - 1} rows, this file has {len(dumped) - 2}"):
        load(dumped, "dump", tmp_path / "new.db")
    with pytest.raises(StoreError, match="goes on after its last line"):
        load([dumped[0], '{"end": 0}\n', dumped[1]], "dump", tmp_path / "new.db")
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize(
    "header",
    [{"autotune_dump": 2, "schema": newest_schema()}, {"autotune_dump": 1, "schema": "0042"}],
    ids=["dump", "schema"],
)
def test_a_newer_dump_says_what_to_install(tmp_path: Path, header: dict[str, object]) -> None:
    with pytest.raises(StoreError, match=r"newer than this autotune's .*; install autotune 3\.1\.4 or newer"):
        load([json.dumps({**header, "autotune": "3.1.4"})], "dump", tmp_path / "new.db")
    with pytest.raises(StoreError, match="'0000' is none of autotune's"):
        load(['{"autotune_dump": 1, "schema": "0000"}'], "dump", tmp_path / "new.db")


def test_nothing_in_a_dump_is_run(tmp_path: Path, dumped: list[str]) -> None:
    """Text that is code in SQL, Python or a shell comes back as text."""
    layer = Layer("__import__('os').system('touch ran') $(touch ran); `touch ran`", CONV1.problem)
    with Store(tmp_path / "evil.db") as store:
        run_trial(store, open_scope(store, layer=layer), correct(0, 1.0))
    load(lines_of(tmp_path / "evil.db"), "dump", tmp_path / "new.db")
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
    """By a dump and by a merge, whatever stands in the names, messages, configs, dates' neighbours and kernels."""
    layer = Layer(text, CONV1.problem)
    environment = dataclasses.replace(DRIVER_590, driver=text, toolkit=text, flags=text, attributes={text: text})
    device = dataclasses.replace(H200, name=text)
    record = dataclasses.replace(study_record(text, [layer]), text=text)
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
    load(lines_of(tmp_path / "had.db"), "dump", tmp_path / "new.db")
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
