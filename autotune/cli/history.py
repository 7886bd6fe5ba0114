"""`history`: how the best kernel of a layer changed over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.filters import FilterOptions, filter_options
from autotune.cli.options import DATABASE
from autotune.cli.pager import paged
from autotune.cli.plots import falling
from autotune.cli.tables import console, plot_format_options, show
from autotune.columns import Column

if TYPE_CHECKING:
    from datetime import datetime

    from autotune.analysis.history import Event
    from autotune.problem import Problem


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@DATABASE
@filter_options
@plot_format_options
def history(what: str, db: str, only: FilterOptions, style: str | None) -> None:
    """The best of LAYER over time, with finals and retimes.

    Every trial that was the fastest when it ended is shown.

    A layer is its shape: trials of other studies with the same shape are part of its history.
    """
    from autotune.analysis.history import history as events
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store, paged(style):
        admitted = only.of(store)
        all_of = events(store.best.improvements(name), store.finals.list(name), store.retimes.list(name))
        found = [event for event in all_of if admitted(event.row)]
        shown = [event for event in found if event.event == "improvement" or style != "plot"]
        if not found:
            only.warn_unknown(store)
        if not shown:
            rest = "" if only.everything else " that the options admit"
            which = "no improvement" if style == "plot" else "no improvement, finals or retime"
            click.echo(f"{what}: {store.path} has {which}{rest}", err=True)
        if style == "plot":
            _plot(shown, {row.layer.problem: row.name for row in reversed(store.studies.layers(name))})
        else:
            show(found, _EVENT_COLUMNS, style)


def _plot(improvements: Sequence[Event], asked: Mapping[Problem, str]) -> None:
    """How the best of each layer, called as it was asked for, fell for each device, class and measurement mode."""
    out = console()
    groups: dict[tuple[str, str, str, str], list[tuple[datetime, float]]] = {}
    for event in improvements:
        row = event.row
        if event.time_us:
            key = (asked.get(row.problem, row.name), row.device.name, row.trial.accuracy, row.measurement_mode)
            groups.setdefault(key, []).append((event.date, event.time_us))
    for (layer, device, accuracy, measurement_mode), events in groups.items():
        times_us = [us for _, us in events]
        out.print(
            f"{layer} on {device}, {accuracy}, {measurement_mode} cache: {len(events)} improvements", soft_wrap=True
        )
        for line in falling(times_us, min(out.width, 80) - 14):
            out.print(line, soft_wrap=True)
        out.print(f"  {events[0][0]:%Y-%m-%d %H:%M:%S} to {events[-1][0]:%Y-%m-%d %H:%M:%S}\n", soft_wrap=True)


def _date(event: Event) -> datetime:
    return event.date.replace(microsecond=0)


_EVENT_COLUMNS = (
    Column["Event"]("date", _date),
    Column["Event"]("layer", lambda event: event.row.name),
    Column["Event"]("generation", lambda event: event.row.generation, heading="gen"),
    Column["Event"]("device", lambda event: event.row.device.name),
    Column["Event"]("accuracy", lambda event: event.row.trial.accuracy),
    Column["Event"]("deterministic", lambda event: event.row.trial.deterministic, terminal=False),
    Column["Event"]("measurement_mode", lambda event: event.row.measurement_mode),
    Column["Event"]("event", lambda event: event.event),
    Column["Event"]("trial", lambda event: event.row.trial.number),
    Column["Event"]("time_us", lambda event: event.time_us),
    Column["Event"]("over_before", lambda event: event.over_before),
    Column["Event"]("template", lambda event: event.row.trial.config.template, terminal=False),
    Column["Event"]("config", lambda event: event.row.trial.config, below=True),
    Column["Event"]("driver", lambda event: event.environment.driver, terminal=False),
    Column["Event"]("toolkit", lambda event: event.environment.toolkit, terminal=False),
    Column["Event"]("note", lambda event: event.note or None, below=True),
)
