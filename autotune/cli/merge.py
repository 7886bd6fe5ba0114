"""`merge` and `import`: bring trials of another database, or of another tool, into this one."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.options import DATABASE, database_path, writable
from autotune.escape import counted
from autotune.interchange.files import read_recording


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


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@DATABASE
def import_(file: Path, db: str) -> None:
    """Store a search space that another tool recorded.

    FILE is a T4 result file (1.0.0) or a Kernel Tuner cache file, plain or gzip.

    autotune has no source of its kernels, so the trials are listed but never ranked. The study is named after the file.
    """
    from autotune.store import import_recording

    done = import_recording(read_recording(file), writable(db))
    outcome = (
        f"{counted(done.trials, 'trial')} imported"
        if done.trials
        else f"imported before: {counted(done.known, 'trial')}"
    )
    click.echo(f"{db}: {outcome}, as generation {done.generation} of study {done.study}", err=True)
