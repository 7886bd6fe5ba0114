"""What moving a database of very many trials takes, and in how much memory. Run by hand:

    python tests/benchmarks/scale.py small.db --trials 300000

copies a database, adds to the copy so many trials that it resembles years of tuning, and times the commands that read
or write all of it: CPU time of user and system, wall clock, and the most memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

_NUMBERS = "WITH RECURSIVE more(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM more WHERE i < :count) "


def enlarge(path: Path, count: int, *, since: int = 0) -> None:
    """Add so many trials, two in three of them timed with a kernel of their own, as copies of one that was timed.

    `since`: how many were added before.
    """
    with closing(sqlite3.connect(path)) as raw:
        raw.row_factory = sqlite3.Row
        trial = raw.execute("SELECT * FROM trials WHERE median_us IS NOT NULL ORDER BY id LIMIT 1").fetchone()
        with raw:
            first = raw.execute("SELECT max(id) FROM trials").fetchone()[0]
            sources = raw.execute("SELECT max(id) FROM sources").fetchone()[0]
            values = {"count": count, "first": first, "sources": sources}
            kernel = {"id": ":sources + i", "hash": f"printf('a%063d', {since} + i)"}
            _copy(raw, "sources", values, kernel, trial["source_id"], "i % 3")
            median = {"median_us": "CASE WHEN i % 3 THEN 10.0 + i % 997 END"}
            own = {"id": ":first + i", "number": f"{1000000 + since} + i"}
            own["source_id"] = "iif(i % 3, :sources + i, NULL)"
            ended = {"outcome": "iif(i % 3, 'correct', 'compile')", "ranked_us": median["median_us"]}
            config = {"config": f"json_set(config, '$.threads', {1000000 + since} + i)"}
            _copy(raw, "trials", values, {**own, **median, **ended, **config}, trial["id"])
            measured = {"id": "NULL", "trial_id": ":first + i", "median_us": "10.0 + i % 997"}
            (row,) = raw.execute("SELECT id FROM measurements WHERE trial_id = ?", (trial["id"],)).fetchone()
            _copy(raw, "measurements", values, measured, row, "i % 3")


def _copy(
    raw: sqlite3.Connection, table: str, values: dict[str, int], changed: dict[str, str], row_id: int, which: str = "1"
) -> None:
    """Copy a row so often, with some columns as expressions of i."""
    names = [name for _, name, *_ in raw.execute(f"PRAGMA table_info({table})")]
    columns = ", ".join(changed.get(name, name) for name in names)
    statement = (
        f"INSERT INTO {table} {_NUMBERS} SELECT {columns} FROM more, {table} WHERE {table}.id = :row AND {which}"
    )
    raw.execute(statement, {**values, "row": row_id})


def main() -> None:
    """Make the database, run each command, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path, help="a small one, with a trial that was timed")
    parser.add_argument("--trials", type=int, default=300_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.database.absolute().parent) as name:
        folder = Path(name)
        shutil.copy(arguments.database, folder / "big.db")
        enlarge(folder / "big.db", arguments.trials)
        for words in (
            "merge big.db --db merged.db",
            "merge big.db --db merged.db",
            "trials --all --csv --db big.db",
            "trials --all --json --db big.db",
            "dump all.jsonl --db big.db",
            "load all.jsonl --db loaded.db",
        ):
            _tell(folder, words)


def _tell(folder: Path, words: str) -> None:
    begun = time.perf_counter()
    with (folder / "printed").open("w") as out:
        run = subprocess.Popen([sys.executable, "-m", "autotune", *words.split()], cwd=folder, stdout=out)
        _, code, used = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(code)
    cpu_s, wall_s, mb = used.ru_utime + used.ru_stime, time.perf_counter() - begun, used.ru_maxrss / 1e3
    print(f"{words:32} status {run.returncode}, {cpu_s:5.1f} s of CPU, {wall_s:5.1f} s, {mb:4.0f} MB", flush=True)


if __name__ == "__main__":
    main()
