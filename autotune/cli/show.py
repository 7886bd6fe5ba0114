"""`show`: everything that is known of one trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import NO_FACTS, TrialWithRoofline, with_rooflines
from autotune.analysis.trial_columns import TRIAL_COLUMNS
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.options import DATABASE
from autotune.cli.pager import paged
from autotune.cli.tables import format_options, human, show, show_as_lines
from autotune.columns import Cell, Column, Items
from autotune.errors import StoreError
from autotune.table import LARGEST, is_whole

if TYPE_CHECKING:
    from autotune.store import Store, TrialRow
    from autotune.trial import Timing


@click.command("show")
@click.argument("what", metavar="STUDY.LAYER|ID", shell_complete=studies_and_layers)
@click.argument("number", metavar="[NUMBER]", type=click.IntRange(0, LARGEST), required=False)
@DATABASE
@format_options
def show_trial(what: str, number: int | None, db: str, style: str | None) -> None:
    """Everything of one trial: config, samples, environment.

    A trial is the NUMBER of a layer, as `autotune trials` lists it, or the ID that `trial_id` is in `autotune query`.
    Where several devices or measurement modes have the number, each is shown. `autotune source LAYER --trial N` has the
    kernel.
    """
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store, paged(style):
        found = _found(store, name or what, number, db)
        if style is not None:
            show(found, COLUMNS, style)
            return
        for one in found:
            told = [(column.key, human(column.value(one), 6)) for column in COLUMNS if column.value(one) not in _EMPTY]
            show_as_lines([key for key, _ in told], [[cell for _, cell in told]])


_EMPTY = (None, "")


def _found(store: Store, what: str, number: int | None, db: str) -> list[TrialWithRoofline]:
    """The trials that are named. Raises StoreError where there is none."""
    if number is None:
        if not is_whole(what, 0, LARGEST):
            raise click.UsageError(f"{what}: give the NUMBER of its trial, too; `autotune trials {what}` lists them")
        row = store.trial_lookup.by_id(int(what))
        if row is None:
            raise StoreError(f"{db}: no trial has the id {what}; `autotune query` has them as trial_id in `results`")
        return list(with_rooflines(store, [row]))
    spaces = [row for row in store.spaces.list(what) if row.trial.number == number]
    rows = store.trial_lookup.numbered(what, number)
    found = [*with_rooflines(store, rows), *(TrialWithRoofline(row, NO_FACTS) for row in spaces)]
    if not found:
        raise StoreError(f"{db}: {what} has no trial {number}; `autotune trials {what}` lists what there is")
    return found


def _measured(key: str, value: Callable[[TrialRow], Cell]) -> Column[TrialWithRoofline]:
    """A column about a trial of a layer; empty for one of an imported space."""
    from autotune.store import TrialRow

    return Column(key, lambda one: value(one.row) if isinstance(one.row, TrialRow) else None)


def _timed(key: str, value: Callable[[Timing], Cell]) -> Column[TrialWithRoofline]:
    """A column about a trial's timing."""
    return Column(key, lambda one: value(one.row.trial.timing) if one.row.trial.timing else None)


COLUMNS = (
    Column[TrialWithRoofline]("trial_id", lambda one: one.row.id),
    *TRIAL_COLUMNS,
    Column[TrialWithRoofline]("deterministic", lambda one: one.row.trial.deterministic),
    _timed("q1_us", lambda timing: timing.q1_us),
    _timed("q3_us", lambda timing: timing.q3_us),
    _timed("samples_us", lambda timing: Items(timing.samples_us)),
    _measured("measurement_mode", lambda row: row.measurement_mode),
    _measured("attempts", lambda row: row.attempts),
    _measured("reused", lambda row: row.reused),
    _measured("template_hash", lambda row: row.template_hash),
    _measured("arch", lambda row: row.device.arch),
    _measured("driver", lambda row: row.environment.driver),
    _measured("toolkit", lambda row: row.environment.toolkit),
    _measured("flags", lambda row: row.environment.flags),
    _measured("started", lambda row: row.started_at),
)
