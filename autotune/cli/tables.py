"""Tables on the terminal, as JSON or as CSV: one list of columns serves all three."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from autotune.cli.cells import Cell, csv_line, json_object, words
from autotune.cli.streams import exact
from autotune.cli.typed import one_of
from autotune.printable import printable

_PAGE_ROWS, _PAGE_CHARACTERS = 1000, 1 << 20  # of a table; whichever is reached first ends its page
_CELL_CHARACTERS = 1 << 17  # of a cell on the terminal: twice the longest source of a kernel

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


_STYLES = {
    "json": "Print one JSON array of objects, a key per column.",
    "csv": "Print comma-separated values with a header line.",
    "plot": "Draw it on the terminal instead of a table.",
    "wide": "Print all columns and whole configs on a terminal, too, as into a pipe.",
}


def format_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--json` and `--csv`, one at most, passed on as `style`: None for a table, json or csv."""
    return _one_style(function, ("json", "csv"))


def wide_format_options(function: Callable[..., None]) -> Callable[..., None]:
    """The same with `--wide`, for tables that show less on a terminal."""
    return _one_style(function, ("json", "csv", "wide"))


def plot_format_options(function: Callable[..., None]) -> Callable[..., None]:
    """Those with `--wide`, and `--plot` for a picture."""
    return _one_style(function, ("json", "csv", "wide", "plot"))


def _one_style(function: Callable[..., None], styles: Sequence[str]) -> Callable[..., None]:
    @functools.wraps(function)
    def chosen(*arguments: object, **given: object) -> None:
        style = one_of({style: bool(given.pop(style)) for style in styles})
        function(*arguments, style=style, **given)

    for style in reversed(styles):
        chosen = click.option(f"--{style}", style, is_flag=True, help=_STYLES[style])(chosen)
    return chosen


def show(rows: Iterable[Row], columns: Sequence[Column[Row]], style: str | None, *, title: str = "") -> None:
    """Print rows as they come, as a table, a JSON array or CSV; a long table is one of pages."""
    if style in ("json", "csv"):
        _show_exactly(rows, columns, style)
    else:
        shown = [column for column in columns if column.terminal]
        cells = ([human(column.value(row), column.digits) for column in shown] for row in rows)
        for page in _pages(cells):
            _show_on_terminal([printable(column.key) for column in shown], page, title)


def _show_exactly(rows: Iterable[Row], columns: Sequence[Column[Row]], style: str) -> None:
    """Print rows as they come, as a JSON array of objects or as CSV."""
    out = exact(sys.stdout)
    keys = [column.key for column in columns]
    cells = ([column.value(row) for column in columns] for row in rows)
    if style == "csv":
        out.write(csv_line(keys))
        for line in cells:
            out.write(csv_line(line))
        return
    opened = "["
    for row in cells:
        out.write(f"{opened}\n {json_object(keys, row)}")
        opened = ","
    out.write("[]\n" if opened == "[" else "\n]\n")


def _pages(rows: Iterable[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    """The rows in pages that are set as a table each, an empty one where there are none."""
    page: list[Sequence[str]] = []
    characters, many = 0, False
    for row in rows:
        if len(page) == _PAGE_ROWS or characters > _PAGE_CHARACTERS:
            yield page
            page, characters, many = [], 0, True
        page.append(row)
        characters += sum(map(len, row))
    if page or not many:
        yield page


def _show_on_terminal(keys: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    out = console()
    if not _fits(keys, rows, out.width):
        if title:
            out.print(title)
        if not rows:
            out.print("no rows")
        show_as_lines(keys, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for key in keys:
        table.add_column(key, justify="right" if is_numeric(key) else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def show_as_lines(keys: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print each row as lines, a key and its cell each."""
    out = console()
    for row in rows:
        lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        for key, cell in zip(keys, row, strict=True):
            lines.add_row(key, cell)
        out.print(lines, "")


def is_numeric(key: str) -> bool:
    """Whether a column's cells stand to the right."""
    return key.endswith(("_us", "_bytes", "_fraction", "gflops", "registers", "number", "trials"))


def _fits(keys: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether a table this wide breaks no word: rich cuts its widest columns to one width, so to that of any word."""
    columns = list(zip(keys, *rows, strict=True))
    longest = max(cell_len(word) for column in columns for cell in column for word in cell.split() or [""])
    lines = [max(cell_len(line) for cell in column for line in cell.splitlines() or [""]) for column in columns]
    return sum(min(line, longest) for line in lines) + 3 * len(columns) - 1 <= width  # SIMPLE_HEAD's gaps and edges


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, of which COLUMNS=0 says nothing; into a pipe, lines as long as need be."""
    file = exact(sys.stderr if stderr else sys.stdout)  # rich moves the cursor by control characters of its own
    environment = {name: value for name, value in os.environ.items() if (name, value) != ("COLUMNS", "0")}
    plain = _Console(file=file, highlight=False, markup=False, emoji=False, _environ=environment)
    if plain.is_terminal:
        return plain
    return _Console(file=file, highlight=False, markup=False, emoji=False, width=1000, color_system=None)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, as people read it, whoever prints it."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave the end to the command line, as for all other output; rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def human(cell: Cell, digits: int) -> str:
    """A cell as people read it; - for nothing."""
    plain = words(cell)
    if plain is None:
        return "-"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, float):
        return f"{plain:.{digits}g}" if abs(plain) < 10_000 else f"{plain:.0f}"
    text = printable(str(plain))
    if len(text) > _CELL_CHARACTERS:
        return f"{text[:_CELL_CHARACTERS]}... ({len(text)} characters; --json and --csv have all)"
    return text
