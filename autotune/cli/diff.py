"""`diff`: the best kernels of two studies, devices or dates compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import best_per_class
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.options import DATABASE
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.trial import Config

if TYPE_CHECKING:
    from autotune.analysis.diff import Difference, Side
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
            best_per_class(_best(store, first, name)),
            best_per_class(_best(store, second, name)),
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
