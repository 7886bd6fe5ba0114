"""`merge`, `dump`, `load`, `clean` and `query`: commands for the whole database, the cache and the quarantine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

import click

from autotune.atomic_write import atomic_write, check_writable
from autotune.cli.options import DATABASE, SECONDS, database_path
from autotune.cli.output import exact, note
from autotune.cli.tables import format_options, show
from autotune.columns import Cell, key_columns
from autotune.errors import StoreError
from autotune.escape import counted
from autotune.resources import check_writable_results


@click.command()
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path, allow_dash=True), default="-")
@DATABASE
def dump(file: Path, db: str) -> None:
    """Write the whole results database as SQL.

    The SQL goes to FILE or to standard output. Both `autotune load` and the sqlite3 shell can read it.
    """
    from autotune.store import dump as write_dump

    if str(file) == "-":
        write_dump(db, exact(sys.stdout).write)
        return
    with _new(file) as out:
        count = write_dump(db, out.write)
    note(f"{file}: {counted(count, 'row')}")


@contextmanager
def _new(file: Path) -> Iterator[TextIO]:
    """Open a new file for writing that only appears once it is complete. Raises StoreError if it already exists."""
    check_writable(file, "FILE")
    if file.exists():
        raise StoreError(f"{file}: exists already; remove it or give another path")
    with atomic_write(file, "FILE") as begun, begun.open("w", encoding="utf-8", newline="\n") as out:
        yield out


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@DATABASE
def load(file: Path, db: str) -> None:
    """Create a results database from a dump.

    FILE was written by `autotune dump`; - is standard input.
    """
    from autotune.store import load as read_dump

    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as content:
            text = content.read().decode()
    except OSError as error:
        raise StoreError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{file}: not a dump of autotune ({error}); nothing was loaded") from error
    count = read_dump(text, "standard input" if str(file) == "-" else str(file), db)
    note(f"{db}: {counted(count, 'row')} loaded")


@click.command()
@click.argument("other", metavar="OTHER.db", callback=database_path)
@DATABASE
def merge(other: str, db: str) -> None:
    """Copy the trials of another database into this one.

    They are ranked only after they have been re-timed here.
    """
    from autotune.store import merge as bring

    merged = bring(other, db)
    counts = [
        f"{counted(merged.trials, 'trial')} and {counted(merged.studies, 'study', 'studies')} merged",
        f"there already: {counted(merged.known, 'trial')}",
    ]
    if merged.running:
        counts.append(f"{counted(merged.running, 'running trial')} left out")
    note(f"{db}: {', '.join(counts)}")


@click.command()
@click.option("--cache", is_flag=True, help="Remove every compiled kernel.")
@click.option("--quarantine", is_flag=True, help="Let quarantined kernels run again.")
@DATABASE
def clean(cache: bool, quarantine: bool, db: str) -> None:
    """Empty the cache of compiled kernels or the quarantine.

    Without an option, this shows the contents of both and removes nothing.

    If a kernel was running when two runs ended abnormally, it is quarantined. autotune does not run it again under the
    same driver and toolkit.
    """
    if cache or not quarantine:
        _clean_cache(empty=cache)
    if quarantine or not cache:
        _clean_quarantine(db, empty=quarantine)


def _clean_cache(*, empty: bool) -> None:
    from autotune.api.device_names import binary_cache, cache_folder

    binaries = binary_cache()
    state = binaries.state()
    if empty:
        binaries.trim(0)
        shutil.rmtree(cache_folder() / "libraries", ignore_errors=True)  # libraries built for untuned networks
    done = "removed from" if empty else "in"
    click.echo(f"{counted(state.entries, 'compiled kernel')} ({state.size_bytes / 1e6:.1f} MB) {done} {state.folder}")


def _clean_quarantine(db: str, *, empty: bool) -> None:
    from autotune.store import Store, has_results, path_of

    if empty:
        check_writable_results(path_of(db))
    elif not has_results(db):
        return
    with Store(db, create=False) as store:
        rows = store.quarantine.list()
    if empty and rows:
        with Store(db) as store:
            store.quarantine.clear()
    click.echo(f"{counted(len(rows), 'kernel')} {'released' if empty else 'quarantined'} in {db}")
    if not empty:
        for row in rows:
            click.echo(f"  {row.source_hash[:12]} on {row.device}, driver {row.driver}: {row.reason}: {row.message}")


@click.command()
@click.argument("sql", metavar="SQL")
@DATABASE
@click.option("--timeout", "within_s", type=SECONDS, help="Stop after this many seconds.")
@format_options
def query(sql: str, db: str, within_s: float | None, style: str | None) -> None:
    """Run one read-only SQL statement on the database.

    Ctrl-C stops the statement.
    """
    from autotune.store import Store

    with Store(db, create=False) as store:
        result = store.query(sql, within_s=within_s)
    names = distinct(result.columns)
    rows = (dict(zip(names, map(_cell, row), strict=True)) for row in result.rows)
    show(rows, key_columns(*names), style or "wide")


def distinct(names: Sequence[str]) -> list[str]:
    """Make column names distinct by numbering duplicates, so that a JSON object doesn't lose any value."""
    unique_names: dict[str, None] = {}
    last: dict[str, int] = {}
    for name in names:
        unique, number = name, last.get(name, 1)
        while unique in unique_names:
            number += 1
            unique = f"{name}_{number}"
        last[name] = number
        unique_names[unique] = None
    return list(unique_names)


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
