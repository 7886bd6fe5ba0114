"""`trials`: every trial of a study or a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autotune.analysis.trial_columns import TRIAL_COLUMNS
from autotune.api.study_names import name_of
from autotune.cli.above_roofline import AboveRoofline
from autotune.cli.completion import studies_and_layers
from autotune.cli.filters import FilterOptions, filter_options
from autotune.cli.options import DATABASE
from autotune.cli.pager import paged
from autotune.cli.tables import show, wide_format_options
from autotune.columns import Cells, Column
from autotune.family.comments import in_comment
from autotune.toml_table import LARGEST
from autotune.trial import Config, Outcome

if TYPE_CHECKING:
    from autotune.store import Store

    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # generic since click 8.2 alone

_TABLE_ROWS = 50  # of `trials`, unless --limit says otherwise


class _Outcome(_Choice):
    """An outcome; the error for an old word names the new one."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        now = {"constraints": "invalid_config", "correctness": "wrong_result"}.get(value)
        if now is not None:
            self.fail(f"{value!r} is {now!r} now.", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@filter_options
@click.option("--outcome", type=_Outcome([word.value for word in Outcome]), help="Only trials with this outcome.")
@click.option("--sort", type=click.Choice(["number", "median", "registers", "error", "started"]), default="number")
@click.option(
    "--limit",
    type=click.IntRange(0, LARGEST),
    help=f"Maximum number of rows; 0: all. Default: {_TABLE_ROWS} in a table, all in JSON and CSV.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Include earlier generations, and earlier problems of the layers."
)
@click.option("--source", "sources", is_flag=True, help="Print each trial's full message and the kernel's source.")
@wide_format_options
def trials(
    what: str | None,
    db: str,
    only: FilterOptions,
    outcome: str | None,
    sort: str,
    limit: int | None,
    everything: bool,
    sources: bool,
    style: str | None,
) -> None:
    """List trials with their outcomes and times.

    Failed trials have the message of the compiler, the driver or the checker.

    A table shows a config as its family and the values that differ from the family's default; --wide shows all values.
    """
    from autotune.analysis.trial_rows import trial_rows
    from autotune.store import Store

    name = name_of(what)
    generations = "all" if everything else "newest"
    exact = style in ("json", "csv")
    default = None if exact else _TABLE_ROWS
    limit = default if limit is None else limit or None
    above = AboveRoofline()
    with Store(db, create=False) as store, paged(style):
        admitted = only.of(store)
        found = store.results.list(name, outcome=outcome, sort=sort, generations=generations)
        named = [row for row in found if admitted(row)]
        listed = list(above.seen(trial_rows(store, named[:limit])))
        source = Column[Cells]("source", lambda trial: _source(store, trial), terminal=False)
        show(listed, (*TRIAL_COLUMNS, source) if sources and exact else TRIAL_COLUMNS, style)
        above.warn()
        if not listed:
            only.warn_unknown(store)
        if sources and not exact:
            for row in (row for row in listed if row["operation"] is not None):
                trial, config, text = f"{row['layer']} trial {row['number']}", row["config"], _source(store, row)
                click.echo(annotated_source(trial, row["outcome"], row["reason"], config, row["message"], text))
        if len(named) > len(listed) and limit == default:
            click.echo(f"{len(listed)} of {len(named)}; --limit 0 for all", err=True)
    if not listed and not everything:
        click.echo("no such trial; --all includes earlier generations and earlier problems of the layers", err=True)


def _source(store: Store, row: Cells) -> str | None:
    """A trial's rendered kernel; None if none was rendered, or if only its hash is stored."""
    return store.sources.text(row["source_hash"]) if row["source_hash"] else None


def annotated_source(trial: str, outcome: str, reason: str, config: Config, message: str, text: str | None) -> str:
    """The trial's outcome and message as comments above the text of its kernel: a CUDA file."""
    said = [f"{trial}: {outcome}" + (f" / {reason}" if reason else ""), str(config), *message.splitlines()]
    head = "\n".join(f"// {in_comment(line)}" for line in said)
    return f"{head}\n{text if text is not None else '// no source is kept of it'}\n"
