"""Rows that are none: they cost themselves, are named, and do not come in from elsewhere."""

from __future__ import annotations

import gzip
import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every, long_run
from tests.unit.store.test_migrations import DATA as DATABASES

from .attack import attacked, refused
from .rows import HOSTILE, plant

READING = (
    ("best", "--json"),
    ("best", "small.one"),
    ("best", "small.one", "--nearest", "--json"),
    ("trials", "--all", "--json"),
    ("trials", "small", "--source"),
    ("trials", "--sort", "median", "--csv"),
    ("why", "small.one"),
    ("history", "small"),
    ("diff", "small", "2026-11-20"),
    ("stale", "--templates", "families", "--device", "null"),
    ("importance", "small.one"),
    ("devices", "--json"),
    ("quarantine", "--json"),
    ("choose", "small.one"),
    ("source", "small.one"),
    ("accuracy", "small.toml"),
    ("export-t4", "--out", "t4"),
    ("optuna-study", "small.one", "--storage", "study.db"),
)
"""Commands that ask a database."""
MEETS_NONE = (
    ("best", "small.one"),
    ("devices", "--json"),
    ("quarantine", "--json"),
    ("source", "small.one"),
    ("accuracy", "small.toml"),
)
"""Those that ask for rows beside which the hostile ones lie."""
RUNNING = (
    ("replay", "autotune.db", "--seeds", "1"),
    ("tune", "small.toml", "--templates", "families", "--device", "null", "--trials", "12"),
    ("retime", "small", "--templates", "families", "--device", "null"),
    ("compare", "small.toml", "--templates", "families", "--device", "null"),
)


def shown(words: tuple[str, ...]) -> str:
    """A command as a test's name."""
    return " ".join(words)


"""Commands that go on with one."""


@pytest.fixture
def hurt(filled: Path) -> Path:
    """A database with every hostile row there is, all at once."""
    plant(filled, *HOSTILE)
    return filled


@pytest.mark.parametrize("words", every(3, READING), ids=shown)
def test_hostile_rows_cost_themselves(filled: Path, fork_server: ForkServer, words: tuple[str, ...]) -> None:
    """Whatever a command says of a database, it says of the same one with hostile rows; those it meets it names."""
    folder = filled.parent
    clean = attacked(fork_server, folder, *words, within_s=30)
    for left in ("t4", "study.db"):
        (folder / left).exists() and (folder / left).rename(folder / f"clean-{left}")
    plant(filled, *HOSTILE)
    done = attacked(fork_server, folder, *words, within_s=30)
    assert (done.code, done.out) == (clean.code, clean.out), done.err
    if words not in MEETS_NONE:
        assert "autotune: note: autotune.db: without " in done.err


@pytest.mark.parametrize("name", ["a trial of no study", "a trial of no family", "a trial of no device"])
def test_a_trial_that_refers_to_nothing_costs_itself(filled: Path, fork_server: ForkServer, name: str) -> None:
    """Alone in its database: no other row makes a command leave rows out."""
    plant(filled, name)
    lists: list[tuple[str, ...]] = [("trials", "--all"), ("why", "small.one")]
    of_small = [
        ("watch", "small", "--once"),
        ("report", "small", "--out", "r.html"),
        ("export-t4", "--out", "t4"),
        ("optuna-study", "small.one", "--storage", "study.db"),
    ]
    if name == "a trial of no study":
        of_small = []
    elif name == "a trial of no device":  # the best of a device of its own
        lists += [("best",), ("stale", "--templates", "families", "--device", "null")]
    for words in (*lists, *of_small):
        done = attacked(fork_server, filled.parent, *words, within_s=30)
        assert done.code == 0, done.err
        assert "without trials row " in done.err, words


def test_rates_that_are_bytes_cost_themselves(filled: Path, fork_server: ForkServer) -> None:
    """What the long run found: they were compared once they had been read."""
    (filled.parent / "old.db").write_bytes(gzip.decompress((DATABASES / "0009.db.gz").read_bytes()))
    assert attacked(fork_server, filled.parent, "merge", "old.db").code == 0
    with closing(sqlite3.connect(filled)) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        assert raw.execute("UPDATE rates SET per_s = x'98f9'").rowcount > 0
    for words in (("trials", "--all"), ("trials", "--all", "--json")):
        done = attacked(fork_server, filled.parent, *words, within_s=30)
        assert (done.code, "without rates row " in done.err) == (0, True), done


@pytest.mark.parametrize("words", every(2, RUNNING), ids=shown)
def test_work_goes_on_without_them(hurt: Path, fork_server: ForkServer, words: tuple[str, ...]) -> None:
    done = attacked(fork_server, hurt.parent, *words, within_s=60)
    assert done.code in (0, 3), done.err  # 3: a winner is not what it was


@pytest.mark.parametrize("name", every(4, HOSTILE))
def test_none_comes_in_from_elsewhere(filled: Path, fork_server: ForkServer, name: str) -> None:
    """Neither by merge nor by load; the database to merge into is as it was."""
    folder = filled.parent
    for copy in ("other.db", "here.db"):
        (folder / copy).write_bytes(filled.read_bytes())
    plant(folder / "other.db", name)
    before = (folder / "here.db").read_bytes()
    done = attacked(fork_server, folder, "merge", "other.db", "--db", "here.db")
    if name == "a text that is not packed":  # costs that kernel alone, whichever file has it
        assert done.code == 0
        return
    refused(done, "other.db: ", " row ", "nothing was merged")
    assert (folder / "here.db").read_bytes() == before


def test_they_are_listed_and_moved_away(hurt: Path, fork_server: ForkServer) -> None:
    folder = hurt.parent
    listed = attacked(fork_server, folder, "dump", "--check", "--json")
    assert listed.code == 1
    faults = json.loads(listed.out)
    assert len(faults) >= len(HOSTILE)
    assert {fault["table"] for fault in faults} >= {"trials", "measurements", "sources", "runs", "studies", "layers"}
    refused(attacked(fork_server, folder, "dump", "--check", "--quarantine"), "give a FILE")
    moved = attacked(fork_server, folder, "dump", "--check", "--quarantine", "away.jsonl")
    assert moved.code == 0, moved.err
    lines = [json.loads(line) for line in (folder / "away.jsonl").read_text().splitlines()]
    assert [(line["table"], line["reason"]) for line in lines] == [(f["table"], f["reason"]) for f in faults]
    clean = attacked(fork_server, folder, "dump", "--check", "--json")
    assert (clean.code, json.loads(clean.out)) == (0, [])
    with closing(sqlite3.connect(hurt)) as raw:
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    assert "without" not in attacked(fork_server, folder, "trials").err


def test_a_dump_leaves_them_out_and_can_be_loaded(filled: Path, fork_server: ForkServer) -> None:
    folder = filled.parent
    plant(filled, *(name for name in HOSTILE if name != "a text that is not packed"))
    done = attacked(fork_server, folder, "dump", "all.jsonl")
    assert done.code == 0
    assert "autotune: note: autotune.db: without " in done.err
    assert attacked(fork_server, folder, "load", "all.jsonl", "--db", "new.db").code == 0
    ours, theirs = (attacked(fork_server, folder, "best", "--json", "--db", db).out for db in ("autotune.db", "new.db"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": "[1]"}, "config = '[1]': expected a JSON object"),
        ({"ended_at": "yesterday"}, "ended_at = 'yesterday': expected a date"),
        ({"number": 2**62}, "number = 4611686018427387904: expected a whole number from 0 to 2^53"),
        ({"reason": 7}, "reason = 7: expected TEXT"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_dump_with_one_is_not_loaded(
    filled: Path, fork_server: ForkServer, change: dict[str, object], says: str
) -> None:
    folder = filled.parent
    attacked(fork_server, folder, "dump", "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()
    (index, *_) = (number for number, line in enumerate(lines) if '"table":"trials"' in line)
    record = json.loads(lines[index])
    lines[index] = json.dumps({**record, "row": {**record["row"], **change}})
    (folder / "all.jsonl").write_text("\n".join(lines) + "\n")
    refused(attacked(fork_server, folder, "load", "all.jsonl", "--db", "new.db"), "all.jsonl", "trials", says)
    assert not (folder / "new.db").exists()


def test_a_second_version_of_the_schema_is_no_hindrance(filled: Path, fork_server: ForkServer) -> None:
    with closing(sqlite3.connect(filled)) as raw, raw:
        raw.execute("INSERT INTO alembic_version VALUES ('9999')")
    done = attacked(fork_server, filled.parent, "best", "--json")
    assert (done.code, len(json.loads(done.out))) == (0, 1)
    assert "alembic_version has 2 rows" in done.err


@pytest.mark.parametrize("schema", ["0009", *long_run(*((f"{number:04}",) for number in range(1, 9)))])
def test_an_older_schema_is_brought_up_to_date_around_them(
    tmp_path: Path, fork_server: ForkServer, schema: str
) -> None:
    """They stay what they are: a reader and a writer go on without them, and name them, as in a file of today."""
    old, clean = tmp_path / "old.db", tmp_path / "clean.db"
    for path in (old, clean):
        path.write_bytes(gzip.decompress((DATABASES / f"{schema}.db.gz").read_bytes()))
    plant(old, *HOSTILE, old=True)
    before = old.read_bytes()
    for words in (("best", "--json"), ("trials", "--all", "--json"), ("dump", "all.jsonl")):
        (tmp_path / "all.jsonl").unlink(missing_ok=True)
        done = attacked(fork_server, tmp_path, *words, "--db", "old.db", within_s=30)
        (tmp_path / "all.jsonl").unlink(missing_ok=True)
        assert (done.code, done.out) == (0, attacked(fork_server, tmp_path, *words, "--db", "clean.db").out), done.err
    assert "autotune: note: old.db: without " in done.err
    assert old.read_bytes() == before
    (tmp_path / "new.db").write_bytes(gzip.decompress((DATABASES / "0009.db.gz").read_bytes()))
    into = attacked(fork_server, tmp_path, "merge", "new.db", "--db", "old.db", within_s=30)
    assert into.code == 0, into.err
    assert "brought from schema" in into.err
    faults = json.loads(attacked(fork_server, tmp_path, "dump", "--check", "--json", "--db", "old.db").out)
    assert len(faults) >= len(HOSTILE) - 2


def test_ctrl_c_while_sqlite_calls_a_check(filled: Path, fork_server: ForkServer) -> None:
    """An exception in a function that SQLite calls becomes an error of SQLite's: the signal counts all the same."""
    header = "\n".join(f"p{number} = {{ values = [{number}] }}" for number in range(300))
    with closing(sqlite3.connect(filled)) as raw, raw:
        rows = (
            (f"many{number}", "hash", f"[params]\n{header}", "2026-02-03T00:00:00.000000Z") for number in range(900)
        )
        raw.executemany("INSERT INTO templates (family, hash, header, first_seen_at) VALUES (?, ?, ?, ?)", rows)
    run = fork_server.start(filled.parent, "dump", "--check")
    while run.cpu_s < 0.6 and not run.ended:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    ended = run.finish()
    assert (ended.code, ended.err) == (128 + signal.SIGINT, "")


def test_a_header_without_the_params_of_its_trials(filled: Path, fork_server: ForkServer) -> None:
    """The family has changed its params, or another program wrote it: its trials are no recording, and trials still."""
    with closing(sqlite3.connect(filled)) as raw, raw:
        raw.execute("UPDATE templates SET header = '[params]\nother = { values = [1] }'")
    for words in (("report", "small", "--out", "r.html"), ("optuna-study", "small", "--storage", "study.db")):
        assert attacked(fork_server, filled.parent, *words, within_s=30).code == 0
    refused(attacked(fork_server, filled.parent, "importance", "small"), "too few to say anything")
    refused(attacked(fork_server, filled.parent, "replay", "autotune.db"), "records no correct trial")
