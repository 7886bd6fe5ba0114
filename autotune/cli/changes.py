"""`diff` and `history`: what became better or worse between two studies, devices or dates, and how the best came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import undominated
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.only import Only, only_options
from autotune.cli.options import DATABASE
from autotune.cli.pager import paged
from autotune.cli.plots import falling
from autotune.cli.tables import console, format_options, plot_format_options, show
from autotune.columns import Column
from autotune.trial import Config

if TYPE_CHECKING:
    from datetime import datetime

    from autotune.analysis.diff import Difference, Side
    from autotune.analysis.history import Event
    from autotune.problem import Problem
    from autotune.store import BestRow, Store


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@click.option(
    "--by", type=click.Choice(["study", "device", "date"]), help="What A and B are, where they could be two things."
)
@format_options
def diff(a: str, b: str, what: str | None, db: str, by: str | None, style: str | None) -> None:
    """The best of each layer on two sides: which is faster.

    Whether it is beyond noise and what changed in the config is shown, too.

    A and B are two studies (`lenet-k5`, its newest generation, or `lenet-k5@1`), two devices (a recorded name or a
    part of it) or two dates (`2026-11-20`, its end, or `2026-11-20T14:00`, in UTC unless it says otherwise). Layers
    are paired by their shape.
    """
    from autotune.analysis.diff import SIDES, differences, resolve
    from autotune.errors import StoreError
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        studies, devices = store.studies.list(), store.devices.list()
        first, second = (resolve(word, studies, devices, by) for word in (a, b))
        if first.kind != second.kind:
            raise StoreError(f"{a!r} is a {first.kind} and {b!r} a {second.kind}; give two of {', '.join(SIDES)}")
        found = differences(
            undominated(_best(store, first, name)),
            undominated(_best(store, second, name)),
            lambda best: _floor(store, best),
            across_devices=first.kind == "device",
        )
    counts = Counter(difference.verdict for difference in found)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing to compare"
    click.echo(f"A: {first}; B: {second}; {words}", err=True)
    show(found, _DIFF_COLUMNS, style)


def _best(store: Store, side: Side, what: str | None) -> tuple[BestRow, ...]:
    """The best kernels of one side."""
    from autotune.analysis.diff import DateSide, DeviceSide

    if isinstance(side, DeviceSide):
        return tuple(row for row in store.best.list(what) if row.row.device.identity == side.device.identity)
    if isinstance(side, DateSide):
        return store.best.at(side.until, what)
    return store.best.of_study(side.name, side.generation, what)


def _floor(store: Store, best: BestRow) -> float | None:
    floor = store.noise_floors.latest(best.row.device, best.row.measurement_mode)
    return floor.noise_fraction if floor else None


def _layer(difference: Difference) -> str:
    return difference.either.name


def _config(best: BestRow | None) -> Config | None:
    return best.row.trial.config if best else None


def _template(best: BestRow | None) -> str | None:
    return best.row.trial.config.template if best else None


_DIFF_COLUMNS = (
    Column["Difference"]("layer", _layer),
    Column["Difference"]("layer_a", lambda row: row.before.name if row.before else None, terminal=False),
    Column["Difference"]("layer_b", lambda row: row.after.name if row.after else None, terminal=False),
    Column["Difference"]("problem", lambda row: str(row.either.layer.problem), terminal=False),
    Column["Difference"]("device_a", lambda row: row.before.row.device.name if row.before else None, terminal=False),
    Column["Difference"]("device_b", lambda row: row.after.row.device.name if row.after else None, terminal=False),
    Column["Difference"]("device", lambda row: row.either.row.device.name),
    Column["Difference"]("accuracy", lambda row: row.either.row.trial.accuracy),
    Column["Difference"]("deterministic", lambda row: row.either.row.trial.deterministic, terminal=False),
    Column["Difference"]("measurement_mode", lambda row: row.either.row.measurement_mode, terminal=False),
    Column["Difference"]("a_us", lambda row: row.before.median_us if row.before else None),
    Column["Difference"]("b_us", lambda row: row.after.median_us if row.after else None),
    Column["Difference"]("b_over_a", lambda row: row.ratio),
    Column["Difference"]("noise_fraction", lambda row: row.noise),
    Column["Difference"]("verdict", lambda row: row.verdict),
    Column["Difference"]("config_changed", lambda row: row.config_changed, terminal=False),
    Column["Difference"]("changes", lambda row: row.changes or None, below=True),
    Column["Difference"]("template_a", lambda row: _template(row.before), terminal=False),
    Column["Difference"]("config_a", lambda row: _config(row.before), terminal=False),
    Column["Difference"]("template_b", lambda row: _template(row.after), terminal=False),
    Column["Difference"]("config_b", lambda row: _config(row.after), terminal=False),
)


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@DATABASE
@only_options
@plot_format_options
def history(what: str, db: str, only: Only, style: str | None) -> None:
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
            only.tell_unknown(store)
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
