"""`trials` and `show`: list recorded trials, or show one trial in full."""

from __future__ import annotations

import json

import click

from autotune.api.study_names import name_of
from autotune.cli.best import warn_faster_than_roofline
from autotune.cli.options import DATABASE, FilterOptions, filter_options, studies_and_layers
from autotune.cli.output import note
from autotune.cli.tables import format_options, human, show, show_as_lines, wide_format_options
from autotune.columns import Column, Items, key_columns
from autotune.errors import StoreError
from autotune.toml_table import LARGEST
from autotune.trial import Outcome

TRIAL_COLUMNS = (
    *key_columns("layer", "number"),
    *key_columns("device", "template", hidden=True),
    *key_columns("config", below=True),
    *key_columns("accuracy", hidden=True),
    *key_columns("outcome", "reason", "median_us", "gflops"),
    *key_columns("gb_per_s", "floor_fraction", "limiter", hidden=True),
    *key_columns("registers"),
    *key_columns("spill_bytes", "smem_bytes", "blocks_per_sm", "warps_per_sm", "occupancy", hidden=True),
    *key_columns("occupancy_limits", "error_over_bound", "compile_us", "verify_us", "measure_us", hidden=True),
    *key_columns("message", below=True),
    *key_columns("source_hash", "generation", "problem", "date", "proposed_by", hidden=True),
    Column("origin", text=lambda trial: None if trial["origin"] == "measured" else trial["origin"]),
)
_TABLE_ROWS = 50  # rows that `trials` prints without --limit


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@filter_options
@click.option("--outcome", type=click.Choice([word.value for word in Outcome]), help="Only trials with this outcome.")
@click.option(
    "--sort",
    type=click.Choice(["number", "median", "registers", "error", "started"]),
    default="number",
    show_default=True,
    help="Order of the rows.",
)
@click.option(
    "--limit",
    type=click.IntRange(0, LARGEST),
    help=f"Maximum number of rows; 0: all. Default: {_TABLE_ROWS} in a table, all in JSON and CSV.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Include earlier generations, and earlier problems of the layers."
)
@wide_format_options
def trials(
    what: str | None,
    db: str,
    only: FilterOptions,
    outcome: str | None,
    sort: str,
    limit: int | None,
    everything: bool,
    style: str | None,
) -> None:
    """List trials with their outcomes and times.

    For failed trials, there is a message from the compiler, the driver or the checker. `autotune show` prints a trial
    in full, and `autotune source LAYER --trial N` prints its kernel.

    Tables show a config as its family and the values that differ from the family's default; --wide shows all values.
    """
    from autotune.analysis.trial_rows import trial_rows
    from autotune.store import Store

    name = name_of(what)
    generations = "all" if everything else "newest"
    default = None if style in ("json", "csv") else _TABLE_ROWS
    limit = default if limit is None else limit or None
    with Store(db, create=False) as store:
        admitted = only.of(store)
        recorded = store.results.list(name, outcome=outcome, sort=sort, generations=generations)
        named = [row for row in recorded if admitted(row)]
        listed = list(trial_rows(store, named[:limit]))
        show(listed, TRIAL_COLUMNS, style)
        warn_faster_than_roofline((row["device"], row["layer"], row["floor_fraction"], "") for row in listed)
        if not listed:
            only.warn_unknown(store)
        if len(named) > len(listed) and limit == default:
            note(f"{len(listed)} of {len(named)}; --limit 0 for all")
    if not listed and not everything:
        note("no such trial; --all includes earlier generations and earlier problems of the layers")


@click.command("show")
@click.argument("what", metavar="LAYER", shell_complete=studies_and_layers)
@click.argument("number", type=click.IntRange(0, LARGEST))
@DATABASE
@format_options
def show_trial(what: str, number: int, db: str, style: str | None) -> None:
    """Show everything about one trial: config, samples, device.

    NUMBER is the trial's number in `autotune trials`. If several devices or measurement modes have a trial with this
    number, all of them are shown. `autotune source LAYER --trial N` prints the kernel.
    """
    from autotune.analysis.trial_rows import trial_rows
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        rows = store.results.list(name, number=number)
        if not rows:
            raise StoreError(f"{db}: {what} has no trial {number}; `autotune trials {what}` lists all of them")
        shown = [{**row, "samples_us": _samples(row["samples_us"])} for row in trial_rows(store, rows)]
        if style is not None:
            show(shown, _SHOW_COLUMNS, style)
            return
        for one in shown:
            known = [column.key for column in _SHOW_COLUMNS if one[column.key] not in _EMPTY]
            show_as_lines(known, [[human(one[key], 6) for key in known]])


_EMPTY = (None, "")


def _samples(text: str | None) -> Items | None:
    return Items(tuple(json.loads(text))) if text else None


_SHOW_COLUMNS = (
    *key_columns("trial_id"),
    *TRIAL_COLUMNS,
    *key_columns("deterministic", "q1_us", "q3_us", "samples_us", "measurement_mode", "attempts", "reused"),
    *key_columns("template_hash", "arch", "driver", "toolkit", "flags", "started"),
)
