"""`why`: explain why a layer's best kernel is the fastest, based on the recorded trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import BestWithRoofline, with_roofline
from autotune.analysis.why import WhyRow, explain
from autotune.api.study_names import name_of
from autotune.cli.best import floor_of, warn_faster_than_roofline
from autotune.cli.options import (
    ACCURACY,
    ALL_ROWS,
    DATABASE,
    DIRECTORIES,
    OF_DEVICE,
    SHOWN_ROWS,
    one_device,
    studies_and_layers,
)
from autotune.cli.tables import format_options, human, say, short_configs, show
from autotune.columns import Cells, Column, field_cells, key_columns
from autotune.errors import StoreError
from autotune.family.space import Admission, BoundTemplate
from autotune.family.template_files import FamilyFile, load_template, template_files
from autotune.operation.registry import operations_here

if TYPE_CHECKING:
    from autotune.store import BestRow, FinalsRow, Store, TrialRow
    from autotune.trial import KernelProfile


@dataclass(frozen=True, slots=True)
class _Explained:
    """A best kernel, with the rows that explain why it is the fastest."""

    kernel: BestWithRoofline
    rows: Sequence[WhyRow]
    rules: str
    """a remark about the family's rules, for example that the family has changed since; may be empty"""
    profiles: tuple[KernelProfile, ...]
    """the latest profile of each of the kernel's launches"""


_COLUMNS = (
    *key_columns("layer", "device", "accuracy", "about", "template", "parameter", "value", "time_us", "over_winner"),
    *key_columns("verdict", "trial", "trials", "correct", "outcome"),
    *key_columns("note", below=True),
    *key_columns("config"),
)


def _cells(row: WhyRow) -> Cells:
    best = row.best.row
    names = {"layer": row.best.name, "device": best.device.name, "accuracy": best.trial.accuracy}
    return {**field_cells(row), **names, "instead": row.instead}


_STALLS_SHOWN = 2  # number of stall reasons to show for a profile


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@DATABASE
@DIRECTORIES
@OF_DEVICE
@ACCURACY
@ALL_ROWS
@format_options
def why(
    what: str,
    db: str,
    directories: tuple[Path, ...],
    device: str | None,
    accuracy: str | None,
    everything: bool,
    style: str | None,
) -> None:
    """Explain why the best kernel of LAYER is the fastest.

    The explanation is a few sentences, followed by the ten most important changes: other parameter values and other
    families, with their times relative to the winner's. It covers the kernel that `autotune source LAYER` prints, or
    the best one in the accuracy class given by --accuracy.

    --all explains every class in full. It lists the trials one step away from the winner, the steps that the family's
    rules forbid, the other families, and the failures.
    """
    from autotune.store import Store

    name = name_of(what, directories)
    with Store(db, create=False) as store:
        info = one_device(store, device)
        best = store.best.list(name, info, accuracy=accuracy)
        if not best:
            raise StoreError(
                f"{db}: no best kernel of {what}{f' on {info.name}' if info else ''} to explain; "
                + store.best.advice(name, info, f"`autotune trials {what}` lists all of them")
            )
        families = template_files(directories, operations_here((row.layer.problem.operation for row in best), what))
        finals = {held.winner.id: held for held in store.finals.list(name)}  # the latest finals won by each winner
        brief = style is None and not everything
        chosen = _first_class(best) if brief else best
        explanations = [_explained(store, families, with_roofline(store, row), finals) for row in chosen]
    if style is not None:
        show((_cells(line) for explained in explanations for line in explained.rows), _COLUMNS, style)
    for position, explained in enumerate(explanations if style is None else ()):
        if position:
            say("")
        if brief:
            _print_answer(explained, best)
        else:
            _print_all(explained, best)
    warn_faster_than_roofline(floor_of(explained.kernel) for explained in explanations)


def _explained(
    store: Store,
    families: Mapping[str, FamilyFile],
    kernel: BestWithRoofline,
    finals: Mapping[int, FinalsRow],
) -> _Explained:
    """Find out why a best kernel is the fastest."""
    winner = kernel.best.row
    floor = store.noise_floors.latest(winner.device, winner.measurement_mode)
    seen = [row.profile for row in store.profiles.list(kernel.best.name) if row.row.id == winner.id]
    profiles = tuple({profile.position: profile for profile in seen}.values())
    file, bound = families.get(winner.trial.config.template), None
    remark = f"the family {winner.trial.config.template} is not installed"
    if file is not None:
        family = load_template(file)
        bound = BoundTemplate(family, winner.problem, winner.device, Admission(prune=True))
        remark = "" if family.hash == winner.template_hash else "by the installed file, which has changed since"
    noise = floor.noise_fraction if floor else None
    decisive = finals.get(winner.id) if kernel.best.decided_by == "finals" else None
    why_rows = explain(kernel.best, store.trials.like(winner), noise=noise, bound=bound, finals=decisive)
    return _Explained(kernel, tuple(why_rows), remark, profiles)


def _first_class(best: Sequence[BestRow]) -> list[BestRow]:
    """Return the kernel that `source` prints for each layer, device and measurement mode, which is the fastest admitted
    one.
    """
    first: dict[tuple[object, ...], BestRow] = {}
    for row in best:
        first.setdefault(_place(row), row)
    return list(first.values())


def _place(row: BestRow) -> tuple[object, ...]:
    """Return layer, device and measurement mode. Kernels in the same place differ in accuracy class and determinism."""
    return row.layer.problem, row.row.device.identity, row.row.measurement_mode


def _columns(*keys: str) -> list[Column]:
    """Return the columns with these keys, in the same order."""
    return [column for key in keys for column in _COLUMNS if column.key == key]


def _print_answer(explained: _Explained, classes: Sequence[BestRow]) -> None:
    """Print the answer in sentences, followed by a table of the most important changes."""
    families, params = _changes(explained)
    for text in _sentences(explained, families, params, classes):
        say(text)
    shown = [*params[: SHOWN_ROWS // 2], *families[: SHOWN_ROWS - min(len(params), SHOWN_ROWS // 2)]]
    if shown:
        say("")
        show(map(_cells, shown), key_columns("instead", "over_winner", "verdict", "trial", "time_us"), None)
    say(f"{len(explained.rows) - len(shown)} more lines with --all")


def _changes(explained: _Explained) -> tuple[list[WhyRow], list[WhyRow]]:
    """Return the other families, fastest first, and for each parameter the best other value tried, slowest first."""
    family = explained.kernel.best.row.trial.config.template
    timed = sorted((row for row in explained.rows if row.over_winner is not None), key=_ratio)
    families = [row for row in timed if row.about == "family" and row.template != family]
    best: dict[str | None, WhyRow] = {}
    for row in timed:
        if row.about == "step":
            best.setdefault(row.parameter, row)
    return families, sorted(best.values(), key=_ratio, reverse=True)


def _ratio(row: WhyRow) -> float:
    return row.over_winner or 0.0


def _sentences(
    explained: _Explained, families: Sequence[WhyRow], params: Sequence[WhyRow], classes: Sequence[BestRow]
) -> Iterator[str]:
    """Explain why the kernel is the fastest: the runner-up family, the values that matter, and the kernel's limit."""
    best, facts = explained.kernel.best, explained.kernel.facts
    trial = best.row.trial
    over = ""
    if families:
        ratio, rival = _ratio(families[0]), families[0].template
        over = f", {ratio:.3g} times as fast as the next family, {rival}"
        if ratio <= 1:
            over = f"; the finals chose it over {rival}, which took {ratio:.3g} times as long"
    yield (
        f"{best.name} on {best.row.device.name}: {trial.config.template} wins with {human(best.median_us, 4)} us "
        f"in class {trial.accuracy}{over}."
    )
    helpful = [change for change in params if change.verdict == "slower"]
    if helpful:
        values = trial.config.params
        reasons = ", ".join(
            f"{change.parameter}={values[str(change.parameter)]} ({change.instead} is {_ratio(change) - 1:.1%} slower)"
            for change in helpful[:3]
        )
        yield f"These values matter most: {reasons}."
    if facts.floor_fraction is not None:
        limit = f", limited by {facts.limiter}" if facts.limiter else ""
        yield f"It reaches {facts.floor_fraction:.0%} of the floor's speed{limit}."
    for profile in explained.profiles:
        stalls = ", ".join(f"{reason} {warps:.1f}" for reason, warps in profile.stalls[:_STALLS_SHOWN])
        occupancy = "-" if profile.achieved_occupancy is None else f"{profile.achieved_occupancy:.2g}"
        yield f"{profile.tool} on {profile.entry}: achieved occupancy {occupancy}, warps stalled for {stalls or '-'}."
    default_ratio = next((row.over_winner for row in explained.rows if row.about == "default"), None)
    if default_ratio is not None and default_ratio != 1:
        yield f"The family's default takes {default_ratio:.4g} times as long."
    yield f"Config: {_short(best.row)}."
    others: dict[str, BestRow] = {}
    for row in classes:
        if _place(row) == _place(best) and row.row.trial.accuracy != trial.accuracy:
            others.setdefault(row.row.trial.accuracy, row)
    if others:
        times = ", ".join(f"{accuracy} ({human(row.median_us, 4)} us)" for accuracy, row in others.items())
        yield f"Other accuracy classes, explained with --accuracy: {times}."


def _print_all(explained: _Explained, classes: Sequence[BestRow]) -> None:
    """Print the answer in sentences, followed by a table for each kind of row."""
    for text in _sentences(explained, *_changes(explained), classes):
        say(text)
    for about, title, keys in _SECTIONS:
        chosen = [row for row in explained.rows if row.about == about]
        say("")
        say(f"{title}{'' if chosen else ': none recorded'}")
        if chosen:
            show(map(_cells, chosen), _columns(*keys), None)
    if explained.rules:
        say(f"rules: {explained.rules}")


def _short(row: TrialRow) -> str:
    return short_configs([row.trial.config])(row.trial.config)


_SECTIONS = (
    ("step", "one step from the winner", ("parameter", "value", "time_us", "over_winner", "verdict", "trial")),
    ("refused", "one step from the winner, refused", ("parameter", "value", "note")),
    ("family", "families", ("template", "time_us", "over_winner", "trials", "correct", "note")),
    ("failure", "what failed", ("trials", "template", "outcome", "note")),
)
"""The kinds of rows, each with its table's title and columns."""
