"""Tables on the terminal, as JSON or as CSV: one list of columns serves all three."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | int | float | bool | None
Row = TypeVar("Row")


class Column(Generic[Row]):
    """A column: its key in JSON and CSV, its value of a row, and whether the terminal shows it."""

    def __init__(self, key: str, value: Callable[[Row], Cell], *, terminal: bool = True, digits: int = 4) -> None:
        self.key = key
        self.value = value
        self.terminal = terminal
        self.digits = digits
        """significant ones of a fraction, on the terminal"""

    def on_terminal(self, shown: bool) -> Column[Row]:
        """The same column, shown on the terminal or not."""
        return Column(self.key, self.value, terminal=shown, digits=self.digits)


def format_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--json` and `--csv`, passed on as `style`: table, json or csv."""
    function = click.option(
        "--csv", "style", flag_value="csv", help="Print comma-separated values with a header line."
    )(function)
    return click.option(
        "--json", "style", flag_value="json", help="Print one JSON array of objects, a key per column."
    )(function)


def show(rows: Iterable[Row], columns: Sequence[Column[Row]], style: str | None, *, title: str = "") -> None:
    """Print rows as a table, a JSON array or CSV."""
    if style == "json":
        records = [{column.key: _finite(column.value(row)) for column in columns} for row in rows]
        json.dump(records, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    elif style == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(column.key for column in columns)
        writer.writerows([column.value(row) for column in columns] for row in rows)
    else:
        shown = [column for column in columns if column.terminal]
        table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
        for column in shown:
            numeric = column.key.endswith(("_us", "_bytes", "_fraction", "gflops", "registers", "number", "trials"))
            table.add_column(column.key, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(_human(column.value(row), column.digits)) for column in shown))
        console().print(table)


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; into a pipe, lines as long as they need to be."""
    plain = _Console(stderr=stderr, highlight=False, soft_wrap=False)
    if plain.is_terminal:
        return plain
    return _Console(stderr=stderr, highlight=False, width=1000, color_system=None)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the end to the command line, as for all other output; rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _finite(cell: Cell) -> Cell:
    """JSON has no infinity: an SQL result that is one becomes null."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _human(cell: Cell, digits: int) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.{digits}g}" if abs(cell) < 10_000 else f"{cell:.0f}"
    return str(cell)
