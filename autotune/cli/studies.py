"""The argument STUDY of a command; and `studies`, which lists the studies with names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.study_names import stored_studies
from autotune.cli.completion import study_names_and_files
from autotune.cli.options import DATABASE
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.errors import StoreError
from autotune.study_reader import shipped_study, study_names

if TYPE_CHECKING:
    from autotune.store import StudyRow

STUDY = click.argument("study", metavar="STUDY", shell_complete=study_names_and_files)
OF_STUDY = click.option("--study", shell_complete=study_names_and_files, help="A study: a file or a name.")


@dataclass(frozen=True, slots=True)
class _Listed:
    """A study that can be named."""

    name: str
    layers: int
    origin: str
    """shipped, or the database"""
    generations: int = 0
    trials: int = 0
    imported_from: str | None = None


_COLUMNS = (
    Column[_Listed]("study", lambda row: row.name),
    Column[_Listed]("layer_count", lambda row: row.layers),
    Column[_Listed]("origin", lambda row: row.origin),
    Column[_Listed]("generations", lambda row: row.generations or None),
    Column[_Listed]("trials", lambda row: row.trials or None),
    Column[_Listed]("imported_from", lambda row: row.imported_from, terminal=False),
)


@click.command()
@DATABASE
@format_options
def studies(db: str, style: str | None) -> None:
    """List the studies that you can name instead of a file.

    They are the studies in the package and those in the database.
    """
    try:
        stored = stored_studies(db)
    except StoreError as error:
        click.echo(f"autotune: without the database's: {error}", err=True)
        stored = ()
    show([*_shipped(), *_known(stored, db)], _COLUMNS, style)


def _shipped() -> Iterator[_Listed]:
    for name in study_names():
        yield _Listed(name, len(shipped_study(name).layers), "shipped")


def _known(stored: tuple[StudyRow, ...], db: str) -> Iterator[_Listed]:
    """A row for each name, with the layers of its newest generation."""
    newest = {row.name: row for row in stored}
    for name, row in newest.items():
        same = [each for each in stored if each.name == name]
        trials = sum(each.trials for each in same)
        yield _Listed(name, row.layers, Path(db).name, len(same), trials, row.imported_from)
