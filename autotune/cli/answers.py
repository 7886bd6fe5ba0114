"""`trials` and `query`: questions to the results database; also what such answers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import NO_FACTS, TrialWithRoofline, with_rooflines
from autotune.analysis.trial_columns import TRIAL_COLUMNS
from autotune.api.study_names import name_of
from autotune.cli.beaten import Beaten
from autotune.cli.completion import studies_and_layers
from autotune.cli.only import Only, only_options
from autotune.cli.options import DATABASE, SECONDS, writable
from autotune.cli.pager import paged
from autotune.cli.tables import format_options, show, wide_format_options
from autotune.columns import Cell, Column
from autotune.family.comments import in_comment
from autotune.table import LARGEST
from autotune.trial import Outcome

if TYPE_CHECKING:
    from autotune.store import SpaceTrial, Store, TrialRow

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

    A table shows a config as its family and the values that differ from the family's default; --wide shows all of it.
    """
    from autotune.store import Store, TrialRow

    name = name_of(what)
    generations = "all" if everything else "newest"
    exact = style in ("json", "csv")
    default = None if exact else _TABLE_ROWS
    limit = default if limit is None else limit or None
    beaten = Beaten()
    with Store(db, create=False) as store, paged(style):
        admitted = only.of(store)
        read = limit if only.everything else None  # what is left out is not counted
        rows = filter(
            admitted, store.trials.list(name, outcome=outcome, sort=sort, limit=read, generations=generations)
        )
        spaces = filter(admitted, store.spaces.list(name, outcome=outcome, sort=sort, limit=read))
        others = (TrialWithRoofline(row, NO_FACTS) for row in spaces)
        listed = list(beaten.seen(islice(chain(with_rooflines(store, rows), others), limit)))
        source = Column[TrialWithRoofline]("source", lambda trial: _source(store, trial.row), terminal=False)
        show(listed, (*TRIAL_COLUMNS, source) if sources and exact else TRIAL_COLUMNS, style)
        beaten.tell()
        if not beaten.rows:
            only.tell_unknown(store)
        if sources and not exact:
            for row in (trial.row for trial in listed if isinstance(trial.row, TrialRow)):
                click.echo(whole(row, _source(store, row)))
        if limit is not None and beaten.rows == limit == default and only.everything:
            _tell_limit(limit, store.trial_lookup.count(name, outcome=outcome, generations=generations))
    if not beaten.rows and not everything:
        click.echo(
            "no such trial; --all has earlier generations too, and the problems that layers had before", err=True
        )


def _source(store: Store, row: TrialRow | SpaceTrial) -> str | None:
    """A trial's rendered kernel; None where none was rendered, or only its hash is kept."""
    return store.sources.text(row.trial.source_hash) if row.trial.source_hash else None


def _tell_limit(shown: int, count: int) -> None:
    if count > shown:
        click.echo(f"{shown} of {count}; --limit 0 for all", err=True)


def whole(row: TrialRow, text: str | None) -> str:
    """What became of a trial, in its own words, above the kernel that was tried: a CUDA file."""
    trial = row.trial
    said = [f"{row.name} trial {trial.number}: {trial.outcome}" + (f" / {trial.reason}" if trial.reason else "")]
    said += [str(trial.config), *trial.message.splitlines()]
    head = "\n".join(f"// {in_comment(line)}" for line in said)
    return f"{head}\n{text if text is not None else '// no source is kept of it'}\n"


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
        show((tuple(map(_cell, row)) for row in found.rows), columns, style or "wide")


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


def _at(position: int) -> Callable[[tuple[Cell, ...]], Cell]:
    return lambda row: row[position]


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
