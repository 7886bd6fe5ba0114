"""`merge`: bring the trials of another database into this one."""

from __future__ import annotations

import click

from autotune.cli.options import DATABASE, database_path, writable
from autotune.escape import counted


@click.command()
@click.argument("other", metavar="OTHER.db", callback=database_path)
@DATABASE
def merge(other: str, db: str) -> None:
    """Copy the trials of another database into this one.

    They are ranked only after they are re-timed here.
    """
    from autotune.store import merge as bring

    merged = bring(other, writable(db))
    counts = [
        f"{counted(merged.trials, 'trial')} and {counted(merged.studies, 'study', 'studies')} merged",
        f"there already: {counted(merged.known, 'trial')}",
    ]
    if merged.running:
        counts.append(f"{counted(merged.running, 'running trial')} left out")
    click.echo(f"{db}: {', '.join(counts)}", err=True)
