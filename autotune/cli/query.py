"""`query`: one SQL statement on the results database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from autotune.cli.options import DATABASE, SECONDS
from autotune.cli.tables import format_options, show
from autotune.columns import Cell, Column


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
    columns = [Column[tuple[Cell, ...]](name, _at(at)) for at, name in enumerate(distinct(result.columns))]
    show((tuple(map(_cell, row)) for row in result.rows), columns, style or "wide")


def distinct(names: Sequence[str]) -> list[str]:
    """Column names, each of its own: a repeated one gets a number, so that no value of a JSON object is lost."""
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


def _at(position: int) -> Callable[[tuple[Cell, ...]], Cell]:
    return lambda row: row[position]


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
