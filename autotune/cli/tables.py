"""Print an answer as a table, as JSON or as CSV."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from autotune.cli.options import one_of
from autotune.cli.streams import exact, wrapped
from autotune.columns import Cell, Column, Row, words, write_csv, write_json
from autotune.errors import TemplateError
from autotune.family.template_files import load_template, template_files
from autotune.printable import printable
from autotune.trial import Config, Value

_GAP = "  "
_NOTHING = "-"
_MOST_MOVED = 3  # columns that a terminal shows below their row because the line is too short for them

_STYLES = {
    "json": "Print one JSON array of objects, a key per column.",
    "csv": "Print comma-separated values with a header line.",
    "plot": "Draw it on the terminal instead of a table.",
    "wide": "Print all columns and whole configs.",
}


def format_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--json` and `--csv`, one at most, passed on as `style`: None for a table, json or csv."""
    return _one_style(function, ("json", "csv"))


def wide_format_options(function: Callable[..., None]) -> Callable[..., None]:
    """The same with `--wide`, for tables that leave columns out."""
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


def show(
    rows: Iterable[Row],
    columns: Sequence[Column[Row]],
    style: str | None,
    *,
    title: str = "",
    apart: Callable[[Row], object] = lambda _: None,
) -> None:
    """Print rows as JSON or CSV as they come, or as a table; the style wide has all columns, whole.

    Rows in sequence with different values of `apart` have a table of their own.
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
    found = list(rows)
    if not found:
        out.print("no rows")
    for position, (_, some) in enumerate(groupby(found, apart)):
        if position:
            out.print()
        if style == "wide":
            _show_whole(out, list(some), columns)
        else:
            _show_table(out, list(some), [column for column in columns if column.terminal])


def _show_whole(out: Console, rows: Sequence[Row], columns: Sequence[Column[Row]]) -> None:
    """All columns side by side, or a line for each where the terminal is too narrow."""
    keys = [printable(column.key) for column in columns]
    cells = [[human(column.value(row), column.digits) for row in rows] for column in columns]
    if not _print_lines(out, keys, cells, {}):
        show_as_lines(keys, zip(*cells, strict=True))


def _show_table(out: Console, rows: Sequence[Row], columns: Sequence[Column[Row]]) -> None:
    """The columns that some row has; a terminal shows once what all rows share."""
    every = {column.heading or column.key: _texts(rows, column) for column in columns}
    cells = {key: texts for key, texts in every.items() if set(texts) - {_NOTHING}}
    below = [key for key, column in zip(every, columns, strict=True) if column.below and key in cells]
    beside = [key for key in cells if key not in below]
    if not out.is_terminal:
        cells["  ".join(below)] = [_GAP.join(line) for line in zip(*(cells[key] for key in below), strict=True)]
        last = [*beside, "  ".join(below)] if below else beside
        _print_lines(out, last, [cells[key] for key in last], {})
        return
    shared = [key for key in beside if len(rows) > 1 and len(set(cells[key])) == 1 and not _is_numeric(key)]
    beside = [key for key in beside if key not in shared]
    if shared:
        text = "; ".join(f"{key} {cells[key][0]}" for key in shared)
        out.print(wrapped(text, out.width, "  ", first=""), soft_wrap=True)
    under = {key: ("", cells[key]) for key in below}
    for _ in range(_MOST_MOVED + 1):
        if _print_lines(out, beside, [cells[key] for key in beside], under):
            return
        movable = [key for key in beside[1:] if not _is_numeric(key)]
        if not movable:
            break
        widest = max(movable, key=lambda key: max(map(cell_len, cells[key])))
        beside.remove(widest)
        under = {widest: (f"{widest}: ", cells[widest]), **under}
    show_as_lines(list(cells), zip(*cells.values(), strict=True))


def _print_lines(
    out: Console, keys: Sequence[str], cells: Sequence[Sequence[str]], under: Mapping[str, tuple[str, Sequence[str]]]
) -> bool:
    """Print the columns side by side and `under` them, in words after a label, the others; false where they do not fit.

    Into a pipe everything fits, and the last column is not padded.
    """
    lines = [[" ".join(cell.splitlines()) for cell in line] for line in zip(*cells, strict=True)]
    widths = [max(map(cell_len, column)) for column in zip(keys, *lines, strict=True)]
    if out.is_terminal and sum(widths) + len(_GAP) * (len(widths) - 1) > out.width:
        return False
    out.print(Text(_aligned(keys, keys, widths), style="bold"), soft_wrap=True)
    for position, line in enumerate(lines):
        out.print(Text(_aligned(keys, line, widths)), soft_wrap=True)
        for label, texts in under.values():
            if texts[position] != _NOTHING:
                out.print(Text(wrapped(f"{label}{texts[position]}", out.width, "  "), style="dim"), soft_wrap=True)
    return True


def _aligned(keys: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells side by side, numbers to the right."""
    spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    placed = zip(keys, cells, spaces, strict=True)
    return _GAP.join(space + cell if _is_numeric(key) else cell + space for key, cell, space in placed).rstrip()


def say(text: str) -> None:
    """Print a line of an answer, on a terminal broken between words."""
    out = console()
    out.print(wrapped(text, out.width, "") if out.is_terminal else text, soft_wrap=True)


def show_as_lines(keys: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print each row as lines, a key and its cell each."""
    out = console()
    room = max(map(cell_len, keys), default=0) + 3
    for row in rows:
        for key, cell in zip(keys, row, strict=True):
            text = f"{key:<{room}}{cell}"
            out.print(wrapped(text, out.width, " " * room, first="") if out.is_terminal else text, soft_wrap=True)
        out.print()


def _is_numeric(key: str) -> bool:
    """Whether a column's cells stand to the right."""
    return key.endswith(("_us", "_bytes", "_fraction", "gflops", "registers", "number", "trials"))


def _texts(rows: Sequence[Row], column: Column[Row]) -> list[str]:
    """A column's cells as a table shows them, configs in their short form."""
    cells = [(column.text or column.value)(row) for row in rows]
    short = short_configs([cell for cell in cells if isinstance(cell, Config)])
    return [short(cell) if isinstance(cell, Config) else human(cell, column.digits) for cell in cells]


def human(cell: Cell, digits: int) -> str:
    """A cell as people read it; - for nothing."""
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
    """Configs as their family and the values that differ from its default.

    Of a family that is not installed, the values that differ among the configs given.
    """
    common = _in_common(configs)
    files = template_files(()) if common else {}
    installed = common.keys() & files.keys()
    for name in installed:
        try:
            common[name] = {param.name: param.values[0] for param in load_template(files[name]).params}
        except TemplateError:
            continue

    def short(config: Config) -> str:
        usual = common[config.template]
        differing = [f"{name}={value}" for name, value in config.items if usual.get(name) != value]
        return " ".join([config.template, *(differing or ["(default)"] * (config.template in installed))])

    return short


def _in_common(configs: Iterable[Config]) -> dict[str, dict[str, Value]]:
    """Of each family the values that all of its configs share; none of a single config."""
    values: dict[str, list[dict[str, Value]]] = {}
    for config in configs:
        values.setdefault(config.template, []).append(dict(config.items))
    return {
        family: {
            name: value
            for name, value in found[0].items()
            if len(found) > 1 and all(other.get(name) == value for other in found)
        }
        for family, found in values.items()
    }


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; COLUMNS=0 says nothing of that."""
    file = exact(sys.stderr if stderr else sys.stdout)  # rich moves the cursor by control characters of its own
    environment = {name: value for name, value in os.environ.items() if (name, value) != ("COLUMNS", "0")}
    made = _Console(file=file, highlight=False, markup=False, emoji=False, _environ=environment)
    if made.is_terminal:
        return made
    return _Console(file=file, highlight=False, markup=False, emoji=False, width=1000, color_system=None)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """What is printed, as people read it, whoever prints it."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave the end to the command line, as for all other output; rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
