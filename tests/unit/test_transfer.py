"""`dump`, `load` and `merge` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .tiny import Command


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
        "autotune: the disk is full; make room and run the command again\n",
    )
