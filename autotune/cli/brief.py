"""Tables on a terminal, in 80 columns: what decides first, what all rows share said once, configs in a short form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from autotune.cli.tables import Column, Row, console, human, is_numeric, show, show_as_lines
from autotune.errors import TemplateError
from autotune.family.template_files import load_template, template_files
from autotune.trial import Config, Value

_GAP = "  "
_NOTHING = "-"


class Below(Column[Row]):
    """A column that has a line of its own below each row."""


def show_brief(
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    brief: Sequence[Column[Row]],
    style: str | None,
    *,
    apart: Callable[[Row], object] = lambda _: None,
) -> None:
    """Print rows: on a terminal their brief columns unless the style is wide, else as `show` does.

    Rows behind one another that differ in what `apart` says have a table of their own there.
    """
    if style is not None or not rows or not console().is_terminal:
        show(rows, columns, style)
        return
    for position, (_, some) in enumerate(groupby(rows, apart)):
        if position:
            console().print()
        _show(list(some), brief)


def _show(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> None:
    out = console()
    cells = {column.key: [human(column.value(row), column.digits) for row in rows] for column in columns}
    told = {key: found for key, found in cells.items() if set(found) - {_NOTHING}}
    below = [column.key for column in columns if isinstance(column, Below) and column.key in told]
    shared = [key for key in told if key not in below and len(rows) > 1 and len(set(told[key])) == 1]
    shared = [key for key in shared if not is_numeric(key)]
    beside = [key for key in told if key not in below and key not in shared]
    if shared:
        out.print("; ".join(f"{key} {told[key][0]}" for key in shared))
    lines = [_one_line(row) for row in zip(*(told[key] for key in beside), strict=True)]
    widths = [max(map(cell_len, column)) for column in zip(beside, *lines, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > out.width:
        keys = (*beside, *below)
        show_as_lines(keys, list(zip(*(told[key] for key in keys), strict=True)))
        return
    out.print(Text(_aligned(beside, beside, widths), style="bold"))
    for position, line in enumerate(lines):
        out.print(Text(_aligned(beside, line, widths)))
        for key in below:
            if told[key][position] != _NOTHING:
                out.print(Padding(Text(told[key][position], style="dim"), (0, 0, 0, 2)))


def _one_line(cells: Sequence[str]) -> list[str]:
    return [" ".join(cell.splitlines()) for cell in cells]


def _aligned(keys: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells side by side, numbers to the right."""
    spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    placed = zip(keys, cells, spaces, strict=True)
    return _GAP.join(space + cell if is_numeric(key) else cell + space for key, cell, space in placed).rstrip()


def short_configs(configs: Iterable[Config]) -> Callable[[Config], str]:
    """Configs as their family and what differs from its default.

    Of a family that is not installed, what differs among the configs given.
    """
    common = _in_common(configs)

    def short(config: Config) -> str:
        usual = common[config.template]
        words = [f"{name}={value}" for name, value in config.items if usual.get(name) != value]
        return " ".join([config.template, *(words or ["(default)"] * (config.template in installed))])

    files = template_files(())
    installed = common.keys() & files.keys()
    for name in installed:
        try:
            common[name] = {param.name: param.values[0] for param in load_template(files[name]).params}
        except TemplateError:
            continue
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
