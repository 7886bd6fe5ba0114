"""`history`: how the best time of a layer improved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from autotune.api.study_names import name_of
from autotune.cli.options import DATABASE, FilterOptions, filter_options, studies_and_layers
from autotune.cli.output import paged
from autotune.cli.tables import console, falling, plot_format_options, show
from autotune.columns import Cells, Column, key_column

if TYPE_CHECKING:
    from datetime import datetime


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@DATABASE
@filter_options
@plot_format_options
def history(what: str, db: str, only: FilterOptions, style: str | None) -> None:
    """Show how the best time of LAYER improved.

    It lists every trial that was the fastest when it ended, and all finals and retimes.

    A layer is identified by its shape, so trials of other studies with the same shape are included.
    """
    from autotune.analysis.history import history_rows
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store, paged(style):
        admitted = only.of(store)
        events = list(history_rows(row for row in store.results.history(name) if admitted(row)))
        shown = [event for event in events if event["event"] == "improvement" or style != "plot"]
        if not events:
            only.warn_unknown(store)
        if not shown:
            rest = "" if only.everything else " that the options admit"
            which = "no improvement" if style == "plot" else "no improvement, finals or retime"
            click.echo(f"{what}: {store.path} has {which}{rest}", err=True)
        if style == "plot":
            _plot_history(shown)
        else:
            show(events, _HISTORY_COLUMNS, style)


def _plot_history(improvements: Sequence[Cells]) -> None:
    """Plot the best time of each layer by date, for each device, class and measurement mode, under the name that was
    asked for.
    """
    out = console()
    groups: dict[tuple[str, str, str, str], list[tuple[datetime, float]]] = {}
    for event in improvements:
        key = (event["asked_as"], event["device"], event["accuracy"], event["measurement_mode"])
        groups.setdefault(key, []).append((event["date"], event["time_us"]))
    for (layer, device, accuracy, measurement_mode), events in groups.items():
        times_us = [us for _, us in events]
        out.print(
            f"{layer} on {device}, {accuracy}, {measurement_mode} cache: {len(events)} improvements", soft_wrap=True
        )
        for line in falling(times_us, min(out.width, 80) - 14):
            out.print(line, soft_wrap=True)
        out.print(f"  {events[0][0]:%Y-%m-%d %H:%M:%S} to {events[-1][0]:%Y-%m-%d %H:%M:%S}\n", soft_wrap=True)


_HISTORY_COLUMNS = (
    Column[Cells]("date", lambda event: event["date"].replace(microsecond=0)),
    key_column("layer"),
    key_column("generation", heading="gen"),
    key_column("device"),
    key_column("accuracy"),
    key_column("deterministic", terminal=False),
    *map(key_column, ("measurement_mode", "event", "trial", "time_us", "over_before")),
    key_column("template", terminal=False),
    key_column("config", below=True),
    key_column("driver", terminal=False),
    key_column("toolkit", terminal=False),
    key_column("note", below=True),
)
