"""`trials`, `show`, `history`, `importance` and `diff`: recorded trials, and the answers computed from all of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter

import click

from autotune.analysis.trial_columns import TRIAL_COLUMNS
from autotune.api.study_names import name_of
from autotune.cli.best import warn_faster_than_roofline
from autotune.cli.options import (
    ALL_ROWS,
    DATABASE,
    FAMILIES,
    LAYERS,
    OF_DEVICE,
    SHOWN_ROWS,
    FilterOptions,
    filter_options,
    say_device,
    studies_and_layers,
)
from autotune.cli.output import note
from autotune.cli.tables import format_options, human, say, show, show_as_lines, telling_apart, wide_format_options
from autotune.columns import Cells, Column, Items, field_columns, key_columns
from autotune.errors import StoreError
from autotune.toml_table import LARGEST
from autotune.trial import Outcome

_TABLE_ROWS = 50  # of `trials`, unless --limit says otherwise


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

    Failed trials have the message of the compiler, the driver or the checker. `autotune show` prints one trial in full,
    and `autotune source LAYER --trial N` its kernel.

    A table shows a config as its family and the values that differ from the family's default; --wide shows all values.
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

    NUMBER is the trial's number in `autotune trials`. If several devices or measurement modes have a trial of this
    number, all of them are shown. `autotune source LAYER --trial N` prints the kernel.
    """
    from autotune.analysis.trial_rows import trial_rows
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        rows = store.results.list(name, number=number)
        if not rows:
            raise StoreError(f"{db}: {what} has no trial {number}; `autotune trials {what}` lists what there is")
        shown = list(trial_rows(store, rows))
        if style is not None:
            show(shown, _SHOW_COLUMNS, style)
            return
        for one in shown:
            known = [column for column in _SHOW_COLUMNS if column.value(one) not in _EMPTY]
            show_as_lines([column.key for column in known], [[human(column.value(one), 6) for column in known]])


_EMPTY = (None, "")


def _samples(one: Cells) -> Items | None:
    return Items(tuple(json.loads(one["samples_us"]))) if one["samples_us"] else None


_SHOW_COLUMNS = (
    *key_columns("trial_id"),
    *TRIAL_COLUMNS,
    Column[Cells]("deterministic", lambda one: bool(one["deterministic"])),
    *key_columns("q1_us", "q3_us"),
    Column[Cells]("samples_us", _samples),
    *key_columns("measurement_mode", "attempts"),
    Column[Cells]("reused", lambda one: bool(one["reused"])),
    *key_columns("template_hash", "arch", "driver", "toolkit", "flags", "started"),
)


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@DATABASE
@filter_options
@wide_format_options
def history(what: str, db: str, only: FilterOptions, style: str | None) -> None:
    """Show how the best time of LAYER improved.

    It lists every trial that was the fastest when it ended, and all finals and retimes.

    A layer is identified by its shape, so trials of other studies with the same shape are included.
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
            note(f"{what}: {store.path} has no improvement, finals or retime{rest}")
    show(events, _HISTORY_COLUMNS, style)


_HISTORY_COLUMNS = (
    Column[Cells]("date", lambda event: event["date"].replace(microsecond=0)),
    *key_columns("layer"),
    Column[Cells]("generation", itemgetter("generation"), heading="gen"),
    *key_columns("device", "accuracy"),
    *key_columns("deterministic", hidden=True),
    *key_columns("measurement_mode", "event", "trial", "time_us", "over_before"),
    *key_columns("template", hidden=True),
    *key_columns("driver", "toolkit", hidden=True),
    *key_columns("note", "config", below=True),
)


@dataclass(frozen=True, slots=True)
class _Importance:
    """A parameter of a family on a layer."""

    layer: str
    device: str
    template: str
    trials: int
    parameters: str
    importance: float


@click.command()
@click.argument("what", metavar="STUDY|LAYER", shell_complete=studies_and_layers)
@DATABASE
@OF_DEVICE
@FAMILIES
@LAYERS
@ALL_ROWS
@wide_format_options
def importance(
    what: str,
    db: str,
    device: str | None,
    only_families: tuple[str, ...],
    only_layers: tuple[str, ...],
    everything: bool,
    style: str | None,
) -> None:
    """Show which parameters affect the time.

    The answer is computed from the trials of each layer and family.

    `importance` measures how differently a parameter is set in the fastest tenth of the correct trials (Optuna's
    PED-ANOVA); the values of a family add up to 1. Families with fewer than 20 correct trials are left out.
    """
    from autotune.api.family_importance import importances

    analysed = importances(what, db=db, device=device, families=only_families, layers=only_layers, say=say_device)
    rows = [
        _Importance(family.layer, family.device, family.template, family.found.trials, name, share)
        for family in analysed
        for name, share in family.found.params
    ]
    all_rows = everything or style is not None
    shown = rows if all_rows else sorted(rows, key=lambda row: -row.importance)[:SHOWN_ROWS]
    if not all_rows:
        say(_answer(shown[0]))
    show(shown, _IMPORTANCE_COLUMNS, style, apart=_family_of if all_rows else lambda _: None)
    if len(shown) < len(rows):
        say(f"{len(rows) - len(shown)} more rows with --all")


def _answer(row: _Importance) -> str:
    """A sentence about the parameter with the largest importance."""
    return (
        f"{row.parameters} of {row.template} affects {row.layer} ({row.device}) most: "
        f"importance {row.importance:.2f} among {row.trials} correct trials."
    )


def _family_of(row: _Importance) -> tuple[str, str, str, int]:
    return row.layer, row.device, row.template, row.trials


_IMPORTANCE_COLUMNS = field_columns(_Importance, digits=2)


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@click.option(
    "--by", type=click.Choice(["study", "device", "date"]), help="The kind of A and B, if their names are ambiguous."
)
@format_options
def diff(a: str, b: str, what: str | None, db: str, by: str | None, style: str | None) -> None:
    """Compare the best kernels of two studies, devices or dates.

    For each layer it shows which side is faster, whether the difference exceeds the noise, and how the config
    changed.

    A and B are two studies (`lenet-k5` for the newest generation, or `lenet-k5@1`), two devices (a part of a recorded
    name) or two dates (`2026-11-20` for its end, or `2026-11-20T14:00`, in UTC unless it has a zone). Layers are paired
    by their shape.
    """
    from autotune.analysis.diff import SIDES, diff_rows, resolve
    from autotune.errors import StoreError
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        studies, devices = store.studies.list(), store.devices.list()
        first, second = (resolve(word, studies, devices, by) for word in (a, b))
        if first.kind != second.kind:
            raise StoreError(f"{a!r} is a {first.kind} and {b!r} a {second.kind}; give two of {', '.join(SIDES)}")
        differences = list(diff_rows(store.results.diff(first, second, name)))
    counts = Counter(row["verdict"] for row in differences)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing to compare"
    note(f"A: {first}; B: {second}; {summary}")
    show(differences, telling_apart(_DIFF_COLUMNS, differences), style)


_DIFF_COLUMNS = (
    *key_columns("layer"),
    *key_columns("layer_a", "layer_b", "problem", "device_a", "device_b", hidden=True),
    *key_columns("device", "accuracy"),
    *key_columns("deterministic", "measurement_mode", hidden=True),
    *key_columns("a_us", "b_us", "b_over_a", "noise_fraction", "verdict"),
    *key_columns("config_changed", hidden=True),
    *key_columns("changes", below=True),
    *key_columns("template_a", "config_a", "template_b", "config_b", hidden=True),
)
