"""`best`: the best kernel of each layer, and how well it matches the question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from autotune.analysis.trial_columns import blocks, limits, registers, spill_bytes, warps
from autotune.api.study_names import NamedLayers, layers_of_file, name_of, named_layers
from autotune.cli.floors import floor_of, warn_faster_than_roofline
from autotune.cli.network_table import network_columns, show_network
from autotune.cli.options import ACCURACY, DATABASE, OF_DEVICE, one_device, studies_and_layers
from autotune.cli.tables import show, wide_format_options
from autotune.columns import Cell, Column
from autotune.errors import NoTemplate

if TYPE_CHECKING:
    from autotune.analysis.rooflines import BestWithRoofline
    from autotune.devices.device import DeviceInfo
    from autotune.problem import Layer, Problem
    from autotune.store import Store
    from autotune.tuning.initial_design import Predicted

_NAMED = 3  # layers that a message lists


@dataclass(frozen=True, slots=True)
class Answer:
    """A layer that was asked about and the best kernel that answers, if there is one."""

    name: str
    """study.layer"""
    layer: Layer
    kernel: BestWithRoofline | None
    predicted: Predicted | None = None
    """the config that was never timed on the layer"""

    @property
    def match(self) -> str:
        """`exact`, `device class` (same compute capability and SM count), `predicted` (never timed) or `none`."""
        if self.kernel is None:
            return "predicted" if self.predicted else "none"
        return self.kernel.best.match


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@OF_DEVICE
@ACCURACY
@click.option("--nearest", is_flag=True, help="Show the config predicted to be fastest if there are no results.")
@wide_format_options
def best(
    what: str | None,
    db: str,
    device: str | None,
    accuracy: str | None,
    nearest: bool,
    style: str | None,
) -> None:
    """Show the best kernel of each layer, device and class.

    For a study of several layers it shows the network that they make up: for each layer the count, the time, its share
    of the total, the fastest rival (`tune --baseline`) and the floor, and then the totals. --json and --csv also print
    all other columns of each kernel. STUDY.LAYER shows the kernel of one layer.

    Non-deterministic kernels are listed only if they beat every deterministic one.

    With --device it shows only kernels for that device. `match` is `exact`, or `device class` for a kernel that was
    tuned on another device with the same compute capability and SM count. A layer without a kernel has a row with match
    `none`.

    With --nearest, a layer without results has a row for each GPU with match `predicted`: the config that the cost
    model predicts to be fastest, corrected by the most similar tuned layers, with its predicted time. `nearest` is the
    most similar one, if one is near enough. A search would evaluate this config first. The layers may be those of a
    study that was never tuned.
    """
    from autotune.analysis.networks import networks
    from autotune.store import Store

    name, of_file = (None, layers_of_file(what)) if nearest else (name_of(what), ())
    with Store(db, create=False) as store:
        if not nearest:
            answers = tuple(_answers(store, name, one_device(store, device), accuracy))
            kernels = [one.kernel for one in answers if one.kernel]
            network_tables = networks(store, name, kernels) if name else []
            if network_tables and style is None:
                for network in network_tables:
                    show_network(network)
                warn_faster_than_roofline(map(floor_of, kernels))
                return
            of_network = [
                _lifted(column.key, column.value, terminal=False) for column in network_columns(network_tables)
            ]
            show_answers(answers, (*BEST_COLUMNS, *of_network), style)
            if not (answers and all(one.kernel for one in answers)):
                if accuracy is not None:
                    _name_classes(store, name, db, accuracy, [one.name for one in answers if one.kernel is None])
                if device is None:
                    _tell_why(store, name, db, [one.layer.problem for one in answers if one.kernel is None])
            return
        info = one_device(store, device)
        answers = tuple(_predicted(store, of_file or named_layers(store, what), info, accuracy))
        show_answers(answers, NEAREST_COLUMNS, style)


def show_answers(answers: Sequence[Answer], columns: Sequence[Column[Answer]], style: str | None) -> None:
    """Print answers, and warn about kernels that are faster than their floors."""
    show(answers, _telling_apart(columns, answers), style)
    warn_faster_than_roofline(floor_of(one.kernel) for one in answers if one.kernel)


def _predicted(store: Store, layers: NamedLayers, info: DeviceInfo | None, accuracy: str | None) -> Iterator[Answer]:
    """The best kernels of each layer, else for each GPU the config that is predicted to be fastest."""
    from autotune.analysis.rooflines import best_per_class, with_roofline
    from autotune.family.template_files import load_templates
    from autotune.tuning.initial_design import predict

    kernels = [best_per_class(store.best.list(layer.problem, info, accuracy=accuracy)) for _, layer in layers]
    untuned = {layer.problem.operation.name for (_, layer), own in zip(layers, kernels, strict=True) if not own}
    templates = load_templates(of=untuned)
    devices = [each for each in ([info] if info else store.devices.list()) if each.can.gpu]
    for (study, layer), own in zip(layers, kernels, strict=True):
        name = f"{study.name}.{layer.name}"
        if own:
            yield from (Answer(name, layer, with_roofline(store, row)) for row in own)
            continue
        of = replace(study, accuracy=accuracy or study.accuracy)
        tuned = store.top_trials.list(None, kinds=("cuda",), accuracies=of.informative(layer.problem))
        found = 0
        for device in devices:
            with suppress(NoTemplate):
                predicted = predict(of, layer, templates, device, tuned, store.rates.best(device))
                found += 1
                yield Answer(name, layer, None, predicted)
        if not found:
            yield Answer(name, layer, None)


def _name_classes(store: Store, what: str | None, db: str, accuracy: str, unanswered: Sequence[str]) -> None:
    """Say which accuracy classes there are, when layers have no kernel of the class that was asked for."""
    classes = sorted({row.row.trial.accuracy for row in store.best.list(what)} - {accuracy})
    if classes:
        more = f" and {len(unanswered) - _NAMED} more" if len(unanswered) > _NAMED else ""
        layers = f" of {', '.join(unanswered[:_NAMED])}{more}" if unanswered else ""
        click.echo(f"{db}: no {accuracy} kernel{layers}; there are kernels of class {', '.join(classes)}", err=True)


def _tell_why(store: Store, what: str | None, db: str, unanswered: Sequence[Problem]) -> None:
    """Say that there are results which do not count as best, where that is so."""
    places: Sequence[str | Problem | None] = unanswered or [what]
    spaces = store.studies.of_spaces(what)
    if spaces:
        click.echo(
            f"{db}: {what or spaces[0]} was recorded by another tool, so it has no best kernels; "
            f"`autotune trials {what or spaces[0]} --sort median` lists it",
            err=True,
        )
    elif any(store.best.is_imported(place) for place in places):
        click.echo(f"{db}: {store.best.advice(what)}", err=True)


def _answers(store: Store, what: str | None, info: DeviceInfo | None, accuracy: str | None) -> Iterator[Answer]:
    """The best kernels in the layers' order, and the layers that have none."""
    from autotune.analysis.rooflines import best_per_class, with_roofline

    answers = [
        answer(with_roofline(store, row)) for row in best_per_class(store.best.list(what, info, accuracy=accuracy))
    ]
    yield from answers
    if what is None and info is None:
        return
    answered = {one.layer.problem for one in answers}
    asked_about = dict.fromkeys((row.name, row.layer) for row in store.studies.layers(what))
    for name, layer in asked_about:
        if layer.problem in answered:
            continue
        yield Answer(name, layer, None)


def answer(kernel: BestWithRoofline) -> Answer:
    """A best kernel as an answer."""
    return Answer(kernel.best.name, kernel.best.layer, kernel)


def _lifted(
    key: str, value: Callable[[BestWithRoofline], Cell], *, terminal: bool = True, below: bool = False
) -> Column[Answer]:
    """A column about the best kernel; empty for a layer without one."""
    return Column(key, lambda one: None if one.kernel is None else value(one.kernel), terminal=terminal, below=below)


def _of_floor(one: Answer) -> str | None:
    fraction = one.kernel.facts.floor_fraction if one.kernel else None
    return None if fraction is None else f"{fraction:.0%}"


BEST_COLUMNS = (
    Column[Answer]("layer", lambda one: one.name),
    Column[Answer]("problem", lambda one: str(one.layer.problem), terminal=False),
    Column[Answer]("match", lambda one: one.match, text=lambda one: None if one.match == "exact" else one.match),
    _lifted("device", lambda row: row.best.row.device.name),
    _lifted("accuracy", lambda row: row.best.row.trial.accuracy),
    _lifted("deterministic", lambda row: row.best.row.trial.deterministic, terminal=False),
    _lifted("median_us", lambda row: row.best.timing.median_us),
    _lifted("q1_us", lambda row: row.best.timing.q1_us, terminal=False),
    _lifted("q3_us", lambda row: row.best.timing.q3_us, terminal=False),
    _lifted("samples", lambda row: len(row.best.timing.samples_us), terminal=False),
    _lifted("gflops", lambda row: row.best.gflops, terminal=False),
    _lifted("floor_us", lambda row: row.floor_us, terminal=False),
    _lifted("ffma_us", lambda row: row.facts.floor.ffma_us if row.facts.floor else None, terminal=False),
    _lifted("gb_per_s", lambda row: row.facts.gb_per_s, terminal=False),
    replace(_lifted("floor_fraction", lambda row: row.facts.floor_fraction), heading="of_floor", text=_of_floor),
    _lifted("limiter", lambda row: row.facts.limiter),
    _lifted("template", lambda row: row.best.row.trial.config.template, terminal=False),
    _lifted("config", lambda row: row.best.row.trial.config, below=True),
    _lifted("registers", lambda row: registers(row.best.row), terminal=False),
    _lifted("spill_bytes", lambda row: spill_bytes(row.best.row), terminal=False),
    _lifted("smem_bytes", lambda row: row.best.row.trial.smem_bytes, terminal=False),
    _lifted("blocks_per_sm", lambda row: blocks(row.facts), terminal=False),
    _lifted("warps_per_sm", lambda row: warps(row.facts), terminal=False),
    _lifted("occupancy", lambda row: row.best.row.trial.occupancy, terminal=False),
    _lifted("occupancy_limits", lambda row: limits(row.facts), terminal=False),
    _lifted("error_over_bound", lambda row: row.best.row.trial.over_bound, terminal=False),
    _lifted("decided_by", lambda row: row.best.decided_by, terminal=False),
    _lifted("measurement_mode", lambda row: row.best.row.measurement_mode, terminal=False),
    _lifted("driver", lambda row: row.best.row.environment.driver, terminal=False),
    _lifted("toolkit", lambda row: row.best.row.environment.toolkit, terminal=False),
    _lifted("date", lambda row: row.best.row.ended_at, terminal=False),
    _lifted("source_hash", lambda row: row.best.row.trial.source_hash, terminal=False),
    _lifted("origin", lambda row: row.best.row.origin, terminal=False),
)


_APART = ("deterministic", "measurement_mode")


def _telling_apart(columns: Sequence[Column[Answer]], answers: Sequence[Answer]) -> list[Column[Answer]]:
    """The columns; determinism and measurement mode are shown, too, where answers differ in them."""
    known = [one for one in answers if one.kernel]
    return [
        replace(column, terminal=True)
        if column.key in _APART and len({column.value(one) for one in known}) > 1
        else column
        for column in columns
    ]


_OF_PREDICTED: Mapping[str, Callable[[Predicted], Cell]] = {
    "device": lambda one: one.bound.device.name,
    "accuracy": lambda one: one.accuracy,
    "template": lambda one: one.config.template,
    "config": lambda one: one.config,
}


def _or_predicted(column: Column[Answer]) -> Column[Answer]:
    """A column about the best kernel that is also known of a predicted config."""
    value = _OF_PREDICTED.get(column.key)
    if value is None:
        return column
    return replace(column, value=lambda one: value(one.predicted) if one.predicted else column.value(one))


NEAREST_COLUMNS = (
    *BEST_COLUMNS[:3],
    Column[Answer]("predicted_us", lambda one: one.predicted.predicted_us if one.predicted else None),
    Column[Answer]("nearest", lambda one: one.predicted.near[0][0] if one.predicted and one.predicted.near else None),
    Column[Answer]("distance", lambda one: one.predicted.near[0][1] if one.predicted and one.predicted.near else None),
    *(_or_predicted(column) for column in BEST_COLUMNS[3:]),
)
"""Of a predicted config, only what does not need a run."""
