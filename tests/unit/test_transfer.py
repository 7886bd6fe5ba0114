"""`dump`, `load`, `merge` and `import` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from autotune.devices.device import DeviceInfo, devices_named

from .tiny import Command

T4 = Path(__file__).parents[1] / "data" / "recorded-spaces" / "convolution_milo-A6000.t4.json.gz"


def test_a_dump_is_loaded_elsewhere(autotune: Command, filled: Path) -> None:
    dumped = autotune("dump")
    assert (dumped.code, dumped.err) == (0, "")
    assert dumped.out.startswith("-- autotune ")
    count = dumped.out.count("\nINSERT INTO ")
    assert autotune("dump", "all.sql").err == f"all.sql: {count} rows\n"
    assert Path("all.sql").read_text() == dumped.out
    loaded = autotune("load", "all.sql", "--db", "new.db")
    assert (loaded.code, loaded.err) == (0, f"new.db: {count} rows loaded\n")
    assert autotune("best", "--db", "new.db", "--json").out == autotune("best", "--json").out
    assert not list(filled.parent.glob("*.part"))


def test_what_cannot_be_written_or_read_is_one_line(autotune: Command, filled: Path) -> None:
    Path("there").write_text("mine")
    for words, says in (
        (("dump", "there"), "there: exists already; remove it or give another path"),
        (("dump", "no/folder"), "no/folder: there is no folder no; create it first or give another FILE"),
        (("dump", "--db", "none.db"), "none.db: no such file"),
        (("load", "none.jsonl"), "none.jsonl: cannot be read: No such file or directory"),
        (("load", "."), ".: cannot be read: Is a directory"),
        (("load", "there", "--db", "new.db"), "there: not a dump of autotune"),
        (("merge", "there"), "there: not an SQLite file"),
        (("merge", "autotune.db"), "autotune.db: is the database to merge into"),
    ):
        done = autotune(*words)
        assert done.code == 1, words
        assert done.err.startswith(f"autotune: {says}"), done.err
        assert len(done.err.splitlines()) == 1
    assert Path("there").read_text() == "mine"
    assert not Path("new.db").exists()


def test_a_merge_says_what_it_brought(autotune: Command, filled: Path) -> None:
    trials = len(json.loads(autotune("trials", "--json").out))
    assert autotune("merge", "autotune.db", "--db", "here.db").err == (
        f"here.db: {trials} trials and 1 study merged, there already: 0 trials\n"
    )
    assert json.loads(autotune("best", "--db", "here.db", "--json").out) == []
    assert len(json.loads(autotune("trials", "--db", "here.db", "--json").out)) == trials


def test_a_device_that_a_file_names_stands_in_the_way_of_none_that_was_measured() -> None:
    measured = DeviceInfo("cuda", "NVIDIA H200", 90, 132, 150_000_000_000)
    named, other = (DeviceInfo("recorded", name, 0, 0, 0) for name in ("NVIDIA H200", "NVIDIA RTX A6000"))
    assert devices_named("h200", [named, measured, other]) == [measured]
    assert devices_named("nvidia", [named, measured, other]) == [measured, other]
    assert devices_named("H200", [named, other]) == [named]


def test_a_recorded_space_is_imported_and_listed(autotune: Command, folder: Path) -> None:
    assert autotune("import", T4).err == (
        "autotune.db: 4362 trials imported, as generation 1 of study convolution_milo-A6000\n"
    )
    assert autotune("import", T4).err.startswith("autotune.db: imported before: 4362 trials")
    listed = autotune("trials", "convolution_milo-A6000", "--sort", "median", "--limit", "2")
    assert listed.code == 0
    assert "603" in listed.out
    assert "imported" in listed.out
    assert len(json.loads(autotune("trials", "--limit", "3", "--json").out)) == 3
    best = autotune("best", "convolution_milo-A6000", "--json")
    assert (best.code, json.loads(best.out)) == (0, [])
    assert "was recorded by another tool" in best.err
    refused = autotune("export", "convolution_milo-A6000", "--out", "kernels")
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)


def test_what_cannot_be_imported_is_one_line(autotune: Command, folder: Path) -> None:
    Path("newer.json").write_text('{"schema_version": "2.0.0", "results": []}')
    Path("text").write_text("no")
    for words, says in (
        (("import", "newer.json"), "newer.json: schema_version = '2.0.0': this autotune reads T4 1.0.0"),
        (("import", "text"), "text:1: not JSON"),
        (("import", "none"), "none: cannot be read: No such file or directory"),
        (("import", "."), ".: cannot be read: Is a directory"),
    ):
        done = autotune(*words)
        assert done.code == 1, words
        assert done.err.startswith(f"autotune: {says}"), done.err
        assert len(done.err.splitlines()) == 1
    assert not Path("autotune.db").exists()


def test_a_full_disk_is_one_line(filled: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "dump"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=filled.parent,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "autotune: standard output: cannot be written: No space left on device\n",
    )
