"""`history`: show how the best time of a layer improved."""

from __future__ import annotations

import click

from autotune.api.study_names import name_of
from autotune.cli.options import DATABASE, FilterOptions, filter_options, studies_and_layers
from autotune.cli.output import note
from autotune.cli.tables import show, wide_format_options
from autotune.columns import Column, key_columns


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
