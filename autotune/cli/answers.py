"""`trials` and `query`: questions to the results database; also what such answers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from autotune.analysis.facts import Facts
from autotune.analysis.rooflines import NO_FACTS, TrialWithRoofline, with_rooflines
from autotune.api.study_names import name_of
from autotune.cli.brief import Below, short_configs, show_brief
from autotune.cli.cells import Cell, Items
from autotune.cli.completion import studies_and_layers
from autotune.cli.numbers import SECONDS
from autotune.cli.only import Only, only_options
from autotune.cli.options import DATABASE, writable
from autotune.cli.pager import paged
from autotune.cli.tables import Column, format_options, show, show_cells, wide_format_options
from autotune.cli.trial_cells import TrialCells
from autotune.family.comments import in_comment
from autotune.table import LARGEST
from autotune.trial import Config, Outcome

if TYPE_CHECKING:
    from autotune.store import SpaceTrial, Store, Streamed, TrialRow

_ROWS_AT_ONCE = 100  # that are printed together, of very many
_TABLE_ROWS = 50  # of `trials`, unless --limit says otherwise


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@only_options
@click.option("--outcome", type=click.Choice([word.value for word in Outcome]), help="Only trials that ended so.")
@click.option("--sort", type=click.Choice(["number", "median", "registers", "error", "started"]), default="number")
@click.option(
    "--limit",
    type=click.IntRange(0, LARGEST),
    help=f"At most so many rows; 0: all. Default: {_TABLE_ROWS} of a table, all of JSON and CSV.",
)
@click.option("--all", "everything", is_flag=True, help="Earlier generations too, and problems that layers had before.")
@click.option("--source", "sources", is_flag=True, help="Each trial's message in full, and the kernel's source.")
@wide_format_options
def trials(
    what: str | None,
    db: str,
    only: Only,
    outcome: str | None,
    sort: str,
    limit: int | None,
    everything: bool,
    sources: bool,
    style: str | None,
) -> None:
    """Every trial, with its outcome and time.

    Of failed ones, the compiler's, driver's or checker's own words.

    On a terminal a config is its family and what differs from the family's default; `autotune show` has the whole.
    """
    from autotune.store import Store, TrialRow

    name = name_of(what)
    generations = "all" if everything else "newest"
    streamed = style in ("json", "csv")
    default = None if streamed else _TABLE_ROWS
    limit = default if limit is None else limit or None
    beaten = Beaten()
    with Store(db, create=False) as store, paged(style):
        admitted = only.of(store)
        read = limit if only.everything else None  # what is left out is not counted
        spaces = filter(admitted, store.spaces.list(name, outcome=outcome, sort=sort, limit=read))
        others = (TrialWithRoofline(row, NO_FACTS) for row in spaces)
        if streamed:
            with closing(
                store.trials.each(name, outcome=outcome, sort=sort, limit=read, generations=generations)
            ) as every:
                _stream(store, every, others, admitted, beaten, limit, style, sources=sources)
        else:
            rows = filter(
                admitted, store.trials.list(name, outcome=outcome, sort=sort, limit=read, generations=generations)
            )
            listed = list(beaten.seen(islice(chain(with_rooflines(store, rows), others), limit)))
            # a table says where its rows come from, if one does not come from here
            columns = trial_columns(imported=any(row.row.origin == "imported" for row in listed))
            shown = _for_failures(columns) if outcome not in (None, "correct") else columns
            show_brief(listed, shown, _brief_columns(listed), style)
        beaten.tell()
        if not beaten.rows:
            only.tell_unknown(store)
        if sources and not streamed:
            for row in (trial.row for trial in listed if isinstance(trial.row, TrialRow)):
                click.echo(whole(row, _text(store, row.trial.source_hash)))
        if beaten.rows == limit == default and only.everything:
            _tell_limit(limit, store.trial_lookup.count(name, outcome=outcome, generations=generations))
    if not beaten.rows and not everything:
        click.echo(
            "no such trial; --all has earlier generations too, and the problems that layers had before", err=True
        )


def _stream(
    store: Store,
    trials: Iterable[Streamed],
    others: Iterable[TrialWithRoofline],
    admitted: Callable[[TrialRow], bool],
    beaten: Beaten,
    limit: int | None,
    style: str | None,
    *,
    sources: bool,
) -> None:
    """Print trials as JSON or CSV while they are read, and then those of recorded spaces."""
    columns = trial_columns(imported=False)
    keys = [column.key for column in columns]
    of_hash = keys.index("source_hash")

    def cells_of(found: Iterable[TrialWithRoofline]) -> Iterator[list[Cell]]:
        return ([column.value(trial) for column in columns] for trial in beaten.seen(found))

    made = TrialCells(store, admitted, lambda row: next(cells_of(with_rooflines(store, [row]))), beaten.note)
    rows: Iterator[list[Cell]] = islice(chain(made.of(trials), cells_of(others)), limit)
    if sources:
        rows = ([*cells, _text(store, cells[of_hash])] for cells in rows)
    at_once = 1 if sources else _ROWS_AT_ONCE  # a kernel's text may have a megabyte
    batches = iter(lambda: list(islice(rows, at_once)), [])
    show_cells(batches, [*keys, "source"] if sources else keys, style)


def _tell_limit(shown: int, count: int) -> None:
    if count > shown:
        click.echo(f"{shown} of {count}; --limit 0 for all", err=True)


def _text(store: Store, source_hash: Cell) -> str | None:
    """A trial's rendered kernel; None where none was rendered, or only its hash is kept."""
    source = store.sources.get(source_hash) if isinstance(source_hash, str) and source_hash else None
    return source.program.text if source else None


def whole(row: TrialRow, text: str | None) -> str:
    """What became of a trial, in its own words, above the kernel that was tried: a CUDA file."""
    trial = row.trial
    said = [f"{row.name} trial {trial.number}: {trial.outcome}" + (f" / {trial.reason}" if trial.reason else "")]
    said += [str(trial.config), *trial.message.splitlines()]
    head = "\n".join(f"// {in_comment(line)}" for line in said)
    return f"{head}\n{text if text is not None else '// no source is kept of it'}\n"


def _for_failures(columns: Sequence[Column[TrialWithRoofline]]) -> list[Column[TrialWithRoofline]]:
    """The columns with, on the terminal, what is known of a trial that was not timed."""
    shown = ("layer", "number", "template", "config", "reason", "message")
    return [column.on_terminal(shown=column.key in shown) for column in columns]


@click.command()
@click.argument("sql", metavar="SQL")
@DATABASE
@click.option("--timeout", "within_s", type=SECONDS, help="Stop after so many seconds.")
@format_options
def query(sql: str, db: str, within_s: float | None, style: str | None) -> None:
    """Run one read-only SQL statement on the database.

    Ctrl-C stops it.
    """
    from autotune.store import Store

    with Store(db, create=False) as store, store.stream(sql, within_s=within_s) as found:
        names = distinct(found.columns)
        columns = [Column[tuple[Cell, ...]](name, _at(position)) for position, name in enumerate(names)]
        show((tuple(map(_cell, row)) for row in found.rows), columns, style)


def distinct(names: Sequence[str]) -> list[str]:
    """Column names, each of its own: a repeated one gets a number, so that no value of a JSON object is lost."""
    found: dict[str, None] = {}
    last: dict[str, int] = {}
    for name in names:
        unique, number = name, last.get(name, 1)
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        last[name] = number
        found[unique] = None
    return list(found)


def open_filled(db: str) -> Store:
    """The results database open for writing, for what builds on its results; where there is none, none is made."""
    from autotune.store import Store

    with Store(db, create=False):
        pass  # it is there and not empty
    return Store(writable(db))


class Beaten:
    """Which kernels are faster than their floors, noted as rows are shown, and told afterwards."""

    def __init__(self) -> None:
        self.rows = 0
        """that were shown"""
        self._devices: dict[str, dict[str, float]] = {}

    def seen(self, found: Iterable[TrialWithRoofline]) -> Iterator[TrialWithRoofline]:
        """The rows, each noted."""
        for trial in found:
            self.note(trial.row.device.name, trial.row.name, trial.facts.floor_fraction)
            yield trial

    def note(self, device: str, layer: str, floor_fraction: float | None) -> None:
        """Note a row."""
        self.rows += 1
        if (fraction := floor_fraction or 0.0) > 1.0:
            of_device = self._devices.setdefault(device, {})
            of_device[layer] = max(fraction, of_device.get(layer, 0.0))

    def tell(self) -> None:
        """Say which on standard error, a line for each device."""
        for device, fractions in self._devices.items():
            most = max(fractions, key=fractions.__getitem__)
            others = f" (and {len(fractions) - 1} more)" if len(fractions) > 1 else ""
            click.echo(
                f"{device}: {most}{others} is {fractions[most] - 1:.1%} faster than its floor, so the floor is wrong: "
                f"the device's stored rates are too low; run `autotune devices --calibrate` there",
                err=True,
            )


def tell_beaten(found: Iterable[tuple[TrialRow | SpaceTrial, Facts]]) -> None:
    """Say on standard error which kernels are faster than their floors."""
    beaten = Beaten()
    for row, facts_of_it in found:
        beaten.note(row.device.name, row.name, facts_of_it.floor_fraction)
    beaten.tell()


def _at(position: int) -> Callable[[tuple[Cell, ...]], Cell]:
    return lambda row: row[position]


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def config_words(row: TrialRow | SpaceTrial) -> str:
    """The parameters of a row's config as `name=value` words."""
    return parameter_words(row.trial.config)


def parameter_words(config: Config) -> str:
    """A config's parameters as `name=value` words."""
    return " ".join(f"{name}={value}" for name, value in config.items)


def registers(row: TrialRow | SpaceTrial) -> int | None:
    """None where no compiler reported them, as on the host."""
    return row.trial.resources.registers or None


def spill_bytes(row: TrialRow | SpaceTrial) -> int | None:
    return row.trial.resources.spill_bytes if row.trial.resources.registers else None


def blocks(found: Facts) -> int | None:
    return found.residency.blocks if found.residency else None


def warps(found: Facts) -> int | None:
    return found.residency.warps if found.residency else None


def limits(found: Facts) -> Items | None:
    """What allows no further block on a multiprocessor, such as `registers and warps`."""
    return Items(tuple(found.residency.limits), " and ") if found.residency else None


TRIAL_COLUMNS = (
    Column[TrialWithRoofline]("layer", lambda trial: trial.row.name),
    Column[TrialWithRoofline]("number", lambda trial: trial.row.trial.number),
    Column[TrialWithRoofline]("device", lambda trial: trial.row.device.name, terminal=False),
    Column[TrialWithRoofline]("template", lambda trial: trial.row.trial.config.template),
    Column[TrialWithRoofline]("config", lambda trial: trial.row.trial.config),
    Column[TrialWithRoofline]("accuracy", lambda trial: trial.row.trial.accuracy, terminal=False),
    Column[TrialWithRoofline]("outcome", lambda trial: trial.row.trial.outcome.value),
    Column[TrialWithRoofline]("reason", lambda trial: trial.row.trial.reason),
    Column[TrialWithRoofline]("median_us", lambda trial: trial.row.median_us),
    Column[TrialWithRoofline]("gflops", lambda trial: trial.row.gflops),
    Column[TrialWithRoofline]("gb_per_s", lambda trial: trial.facts.gb_per_s, terminal=False),
    Column[TrialWithRoofline]("floor_fraction", lambda trial: trial.facts.floor_fraction, terminal=False),
    Column[TrialWithRoofline]("limiter", lambda trial: trial.facts.limiter, terminal=False),
    Column[TrialWithRoofline]("registers", lambda trial: registers(trial.row)),
    Column[TrialWithRoofline]("spill_bytes", lambda trial: spill_bytes(trial.row)),
    Column[TrialWithRoofline](
        "smem_bytes", lambda trial: trial.row.trial.smem_bytes if trial.row.trial.compiled else None
    ),
    Column[TrialWithRoofline]("blocks_per_sm", lambda trial: blocks(trial.facts), terminal=False),
    Column[TrialWithRoofline]("warps_per_sm", lambda trial: warps(trial.facts), terminal=False),
    Column[TrialWithRoofline]("occupancy", lambda trial: trial.row.trial.occupancy),
    Column[TrialWithRoofline]("occupancy_limits", lambda trial: limits(trial.facts), terminal=False),
    Column[TrialWithRoofline]("error_over_bound", lambda trial: trial.row.trial.over_bound, terminal=False),
    Column[TrialWithRoofline]("compile_us", lambda trial: trial.row.trial.phases.compile_us, terminal=False),
    Column[TrialWithRoofline]("verify_us", lambda trial: trial.row.trial.phases.verify_us, terminal=False),
    Column[TrialWithRoofline]("measure_us", lambda trial: trial.row.trial.phases.measure_us, terminal=False),
    Column[TrialWithRoofline]("message", lambda trial: trial.row.trial.message, terminal=False),
    Column[TrialWithRoofline]("source_hash", lambda trial: trial.row.trial.source_hash, terminal=False),
    Column[TrialWithRoofline]("generation", lambda trial: trial.row.generation, terminal=False),
    Column[TrialWithRoofline](
        "problem", lambda trial: None if trial.row.problem is None else str(trial.row.problem), terminal=False
    ),
    Column[TrialWithRoofline]("date", lambda trial: trial.row.ended_at, terminal=False),
    Column[TrialWithRoofline]("proposed_by", lambda trial: trial.row.proposed_by, terminal=False),
)


def _brief_columns(found: Sequence[TrialWithRoofline]) -> tuple[Column[TrialWithRoofline], ...]:
    """What a terminal shows of trials."""
    short = short_configs(trial.row.trial.config for trial in found)
    return (
        Column[TrialWithRoofline]("layer", lambda trial: trial.row.name),
        Column[TrialWithRoofline]("number", lambda trial: trial.row.trial.number),
        Column[TrialWithRoofline]("outcome", lambda trial: trial.row.trial.outcome.value),
        Column[TrialWithRoofline]("reason", lambda trial: trial.row.trial.reason or None),
        Column[TrialWithRoofline]("median_us", lambda trial: trial.row.median_us),
        Column[TrialWithRoofline]("gflops", lambda trial: trial.row.gflops),
        Column[TrialWithRoofline]("registers", lambda trial: registers(trial.row)),
        Column[TrialWithRoofline]("origin", lambda trial: trial.row.origin if trial.row.origin != "measured" else None),
        Below[TrialWithRoofline]("config", lambda trial: short(trial.row.trial.config)),
        Below[TrialWithRoofline]("message", lambda trial: trial.row.trial.message or None),
    )


def trial_columns(*, imported: bool) -> tuple[Column[TrialWithRoofline], ...]:
    """The columns of a list of trials; the terminal shows where they come from when any was imported."""
    return (*TRIAL_COLUMNS, Column[TrialWithRoofline]("origin", lambda trial: trial.row.origin, terminal=imported))
