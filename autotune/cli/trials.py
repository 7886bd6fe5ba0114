"""`trials`, `show` and `history`: list recorded trials, show one in full, or show how a layer's best time improved."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from autotune.api.study_names import matches, name_of
from autotune.cli.best import warn_faster_than_roofline
from autotune.cli.options import ACCURACY, DATABASE, FAMILIES, LAYERS, OF_DEVICE, say_device, studies_and_layers
from autotune.cli.output import note
from autotune.cli.tables import format_options, human, show, show_as_lines, wide_format_options
from autotune.columns import Cells, Column, Items, key_columns
from autotune.errors import StoreError
from autotune.toml_table import LARGEST, did_you_mean
from autotune.trial import Outcome

if TYPE_CHECKING:
    from autotune.store import Store

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


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The trials to include. None and () exclude no trial."""

    device: str | None = None
    accuracy: str | None = None
    templates: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether the options exclude no trial."""
        return self == FilterOptions()

    def of(self, store: Store) -> Callable[[Cells], bool]:
        """Return a function that decides whether to include a row of trials or events.

        Raises DeviceError for a device that isn't in the database.
        """
        from autotune.analysis.trial_rows import layer_name
        from autotune.api.answers import devices_asked

        asked = devices_asked(store, self.device, say=say_device)
        devices = None if asked is None else {info.name for info in asked}
        return lambda row: (
            (devices is None or row["device"] in devices)
            and self.accuracy in (None, row["accuracy"])
            and (not self.templates or row["template"] in self.templates)
            and matches(layer_name(row), self.layers)
        )

    def warn_unknown(self, store: Store) -> None:
        """Print a note about each layer and family that isn't in the database, because the answer may be empty then."""
        known = store.studies.layer_names()
        for option, names, known_names in (
            ("--layer", self.layers, known | {name.rpartition(".")[2] for name in known}),
            ("--family", self.templates, store.templates.families()),
        ):
            for name in names:
                if name not in known_names:
                    hint = did_you_mean(name, sorted(known_names))
                    note(f"{option} {name}: {store.shown} has no such name{hint}")


def filter_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add four filter options to a command, which receives them as `only`."""

    @functools.wraps(function)
    def chosen(
        *arguments: object,
        device: str | None,
        accuracy: str | None,
        only_families: tuple[str, ...],
        only_layers: tuple[str, ...],
        **given: object,
    ) -> None:
        function(*arguments, only=FilterOptions(device, accuracy, only_families, only_layers), **given)

    for option in reversed((OF_DEVICE, ACCURACY, FAMILIES, LAYERS)):
        chosen = option(chosen)
    return chosen


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


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@DATABASE
@filter_options
@wide_format_options
def history(what: str, db: str, only: FilterOptions, style: str | None) -> None:
    """Show how the best time of LAYER improved.

    The list contains every trial that was the fastest when it ended, as well as all finals and retimes.

    A layer is identified by its shape, so trials from other studies with the same shape are included.
    """
    from autotune.analysis.history import history_rows
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        admitted = only.of(store)
        events = list(history_rows(row for row in store.results.history(name) if admitted(row)))
        if not events:
            only.warn_unknown(store)
            rest = "" if only.everything else " that the options admit"
            note(f"{what}: {store.shown} has no improvement, finals or retime{rest}")
    show(events, _HISTORY_COLUMNS, style)


_HISTORY_COLUMNS = (
    *key_columns("date", "layer"),
    Column("generation", heading="gen"),
    *key_columns("device", "accuracy"),
    *key_columns("deterministic", hidden=True),
    *key_columns("measurement_mode", "event", "trial", "time_us", "over_before"),
    *key_columns("template", hidden=True),
    *key_columns("driver", "toolkit", hidden=True),
    *key_columns("note", "config", below=True),
)
