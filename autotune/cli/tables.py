"""Print an answer as a table, as JSON or as CSV."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from autotune.cli.output import between_words, exact, wrapped
from autotune.columns import Cell, Cells, Column, words, write_csv, write_json
from autotune.errors import TemplateError
from autotune.escape import printable
from autotune.trial import Config, Value

_GAP = "  "
_NOTHING = "-"
_MOST_MOVED = 3  # number of columns that may move below the row if the terminal is too narrow

_STYLES = {
    "json": "Print one JSON array of objects, a key per column.",
    "csv": "Print comma-separated values with a header line.",
    "wide": "Print all columns and whole configs.",
}


def _style(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(f"--{name}", "style", flag_value=name, allow_from_autoenv=False, help=_STYLES[name])


def format_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--json` and `--csv`, passed on as `style`: json, csv, or None for a table."""
    return _style("json")(_style("csv")(function))


def wide_format_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--json`, `--csv` and `--wide`, for tables that omit columns."""
    return _style("json")(_style("csv")(_style("wide")(function)))


def show(
    rows: Iterable[Cells], columns: Sequence[Column], style: str | None, *, title: str = "", apart: Sequence[str] = ()
) -> None:
    """Print rows as JSON, CSV or a table. The style `wide` prints all columns unabridged.

    Consecutive rows that differ in one of the cells `apart` go into separate tables.
    """
    if style == "json":
        write_json(rows, columns, exact(sys.stdout))
        return
    if style == "csv":
        write_csv(rows, columns, exact(sys.stdout))
        return
    out = console()
    if title:
        out.print(title, soft_wrap=True)
    row_list = list(rows)
    if not row_list:
        out.print("no rows")
    for position, (_, group) in enumerate(groupby(row_list, lambda row: [row[key] for key in apart])):
        if position:
            out.print()
        if style == "wide":
            _show_whole(out, list(group), columns)
        else:
            _show_table(out, list(group), [column for column in columns if column.terminal])


@dataclass(frozen=True, slots=True)
class _Text:
    """A column of a table, formatted as text."""

    key: str
    cells: Sequence[str]
    below: bool = False
    numeric: bool = False
    """whether the cells are right-aligned"""


_CLASS = ("deterministic", "measurement_mode")
"""columns of best kernels that a table shows only if the rows differ in them"""


def telling_apart(columns: Sequence[Column], rows: Sequence[Cells]) -> list[Column]:
    """Return the columns of best kernels. Determinism and measurement mode are shown only if the rows differ in
    them.
    """
    differing = {key for key in _CLASS if len({row[key] for row in rows} - {None}) > 1}
    return [replace(column, terminal=True) if column.key in differing else column for column in columns]


def _show_whole(out: Console, rows: Sequence[Cells], columns: Sequence[Column]) -> None:
    """Print all columns side by side or, if the terminal is too narrow, one line per column."""
    texts = [
        _Text(printable(column.key), [human(cell, column.digits) for cell in cells], numeric=_is_numeric(cells))
        for column in columns
        for cells in [[row[column.key] for row in rows]]
    ]
    if not _print_lines(out, texts, ()):
        _show_lines(texts)


def _show_table(out: Console, rows: Sequence[Cells], columns: Sequence[Column]) -> None:
    """Print the columns that have a value in some row. Values shared by all rows are printed once, above the table."""
    texts = [text for column in columns if set((text := _text(rows, column)).cells) - {_NOTHING}]
    below = [text for text in texts if text.below]
    side_by_side = [text for text in texts if not text.below]
    shareable = side_by_side if out.is_terminal else side_by_side[1:]  # in a pipe, each line starts with the row's name
    shared = [text for text in shareable if len(rows) > 1 and len(set(text.cells)) == 1 and not text.numeric]
    side_by_side = [text for text in side_by_side if text not in shared]
    if shared:
        line = "; ".join(f"{text.key} {text.cells[0]}" for text in shared)
        out.print(wrapped(line, out.width, "  ", first="") if out.is_terminal else line, soft_wrap=True)
    if not out.is_terminal:
        last = [_GAP.join(line) for line in zip(*(text.cells for text in below), strict=True)]
        joined = [_Text(_GAP.join(text.key for text in below), last)] if below else []
        _print_lines(out, [*side_by_side, *joined], ())
        return
    for _ in range(_MOST_MOVED + 1):
        if _print_lines(out, side_by_side, below):
            return
        movable = [text for text in side_by_side[1:] if not text.numeric]
        if not movable:
            break
        widest = max(movable, key=lambda text: max(map(cell_len, text.cells)))
        side_by_side.remove(widest)
        named = [cell if cell == _NOTHING else f"{widest.key}: {cell}" for cell in widest.cells]
        below.insert(0, replace(widest, cells=named))
    _show_lines(texts)


def _print_lines(out: Console, columns: Sequence[_Text], below: Sequence[_Text]) -> bool:
    """Print columns side by side, with the `below` columns under each row.

    Returns False if the terminal is too narrow. In a pipe, every row fits.
    """
    lines = [[" ".join(cell.splitlines()) for cell in line] for line in zip(*(t.cells for t in columns), strict=True)]
    keys = [text.key for text in columns]
    widths = [max(map(cell_len, column)) for column in zip(keys, *lines, strict=True)]
    if out.is_terminal and sum(widths) + len(_GAP) * (len(widths) - 1) > out.width:
        return False
    numeric = [text.numeric for text in columns]
    out.print(Text(_aligned(keys, widths, numeric), style="bold"), soft_wrap=True)
    for position, line in enumerate(lines):
        out.print(Text(_aligned(line, widths, numeric)), soft_wrap=True)
        for text in below:
            if text.cells[position] != _NOTHING:
                out.print(Text(wrapped(text.cells[position], out.width, "  "), style="dim"), soft_wrap=True)
    return True


def _aligned(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    """Align cells in columns, with numbers on the right."""
    spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    placed = zip(cells, spaces, numeric, strict=True)
    return _GAP.join(space + cell if right else cell + space for cell, space, right in placed).rstrip()


def say(text: str) -> None:
    """Print a line of an answer. On a terminal, wrap it between words, keeping the indent."""
    out = console()
    out.print(between_words(text, out.width) if out.is_terminal else text, soft_wrap=True)


def show_as_lines(keys: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print each row as lines, each with a key and a cell."""
    out = console()
    key_width = max(map(cell_len, keys), default=0) + 3
    for row in rows:
        for key, cell in zip(keys, row, strict=True):
            text = f"{key:<{key_width}}{cell}"
            out.print(wrapped(text, out.width, " " * key_width, first="") if out.is_terminal else text, soft_wrap=True)
        out.print()


def _show_lines(texts: Sequence[_Text]) -> None:
    show_as_lines([text.key for text in texts], zip(*(text.cells for text in texts), strict=True))


def _is_numeric(cells: Sequence[Cell]) -> bool:
    return all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in cells)


def _text(rows: Sequence[Cells], column: Column) -> _Text:
    """Format a column as text, with configs in their short form."""
    cells = [column.text(row) if column.text else row[column.key] for row in rows]
    short = short_configs([cell for cell in cells if isinstance(cell, Config)])
    texts = [short(cell) if isinstance(cell, Config) else human(cell, column.digits) for cell in cells]
    return _Text(column.heading or column.key, texts, below=column.below, numeric=_is_numeric(cells))


def human(cell: Cell, digits: int) -> str:
    """Format a cell for people. An empty cell becomes `-`."""
    if isinstance(cell, datetime):
        return f"{cell:%Y-%m-%d %H:%M}"
    plain = words(cell)
    if plain is None or plain == "":
        return _NOTHING
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, float):
        return f"{plain:.{digits}g}" if abs(plain) < 10_000 else f"{plain:.0f}"
    return printable(str(plain))


def short_configs(configs: Iterable[Config]) -> Callable[[Config], str]:
    """Return a function that shortens a config to its family and the values that differ from the family's defaults.

    For families that aren't bundled, the function shows all values.
    """
    from autotune.family.template_files import default_values, template_files

    names = {config.template for config in configs}
    files = template_files(()) if names else {}
    defaults: dict[str, Mapping[str, Value]] = {}
    for name in names & files.keys():
        with suppress(TemplateError):
            defaults[name] = default_values(files[name])

    def short(config: Config) -> str:
        usual = defaults.get(config.template, {})
        differing = [f"{name}={value}" for name, value in config.pairs if usual.get(name) != value]
        return " ".join([config.template, *(differing or ["(default)"] * (config.template in defaults))])

    return short


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; COLUMNS=0 is ignored."""
    file = exact(sys.stderr if stderr else sys.stdout)  # rich moves the cursor with control characters
    environment = {name: value for name, value in os.environ.items() if (name, value) != ("COLUMNS", "0")}
    made = _Console(file=file, highlight=False, markup=False, emoji=False, _environ=environment)
    if made.is_terminal:
        return made
    return _Console(file=file, highlight=False, markup=False, emoji=False, width=1000, color_system=None)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Escape all printed text, including text that rich adds."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command line, as for other output, because rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
