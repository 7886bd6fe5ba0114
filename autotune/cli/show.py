"""`show`: everything that is known of one trial."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from autotune.analysis.trial_columns import TRIAL_COLUMNS
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.options import DATABASE
from autotune.cli.pager import paged
from autotune.cli.tables import format_options, human, show, show_as_lines
from autotune.columns import Cell, Cells, Column, Items, key_column
from autotune.errors import StoreError
from autotune.toml_table import LARGEST, is_whole

if TYPE_CHECKING:
    from autotune.store import Store


@click.command("show")
@click.argument("what", metavar="STUDY.LAYER|ID", shell_complete=studies_and_layers)
@click.argument("number", metavar="[NUMBER]", type=click.IntRange(0, LARGEST), required=False)
@DATABASE
@format_options
def show_trial(what: str, number: int | None, db: str, style: str | None) -> None:
    """Show everything about one trial: config, samples, device.

    A trial is the NUMBER that `autotune trials` lists for a layer, or the ID that is `trial_id` in `autotune query`. If
    several devices or measurement modes have a trial of this number, all of them are shown. `autotune source LAYER
    --trial N` prints the kernel.
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


def _found(store: Store, what: str, number: int | None, db: str) -> list[Cells]:
    """The named trials. Raises StoreError if there are none."""
    from autotune.analysis.trial_rows import trial_rows

    if number is not None:
        found = store.results.list(what, number=number)
        if not found:
            raise StoreError(f"{db}: {what} has no trial {number}; `autotune trials {what}` lists what there is")
    else:
        if not is_whole(what, 0, LARGEST):
            raise click.UsageError(f"{what}: give the NUMBER of its trial, too; `autotune trials {what}` lists them")
        found = store.results.by_id(int(what))
        if not found:
            raise StoreError(f"{db}: no trial has the id {what}; `autotune query` has them as trial_id in `results`")
    return list(trial_rows(store, found))


def _measured(key: str, convert: Callable[[Any], Cell] = lambda cell: cell) -> Column[Cells]:
    """A column about a trial of a layer; empty for one of an imported space."""
    return Column(key, lambda one: None if one["operation"] is None else convert(one[key]))


def _samples(one: Cells) -> Items | None:
    return Items(tuple(json.loads(one["samples_us"]))) if one["samples_us"] else None


COLUMNS = (
    key_column("trial_id"),
    *TRIAL_COLUMNS,
    Column[Cells]("deterministic", lambda one: bool(one["deterministic"])),
    key_column("q1_us"),
    key_column("q3_us"),
    Column[Cells]("samples_us", _samples),
    _measured("measurement_mode"),
    _measured("attempts"),
    _measured("reused", bool),
    _measured("template_hash"),
    _measured("arch"),
    _measured("driver"),
    _measured("toolkit"),
    _measured("flags"),
    _measured("started"),
)
