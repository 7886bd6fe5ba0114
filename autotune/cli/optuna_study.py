"""`optuna-study`: a study's trials as Optuna studies, for optuna-dashboard and Optuna's other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.options import DATABASE
from autotune.errors import StoreError, StudyError
from autotune.printable import counted
from autotune.trial import Outcome, Value

if TYPE_CHECKING:
    from autotune.store import Store, TrialRow


@click.command("optuna-study")
@click.argument("what", metavar="STUDY|LAYER", shell_complete=studies_and_layers)
@click.option("--storage", required=True, metavar="URL", help="Optuna's storage: a path or an SQLAlchemy URL.")
@DATABASE
def optuna_study(what: str, storage: str, db: str) -> None:
    """Write the trials as Optuna studies.

    There is one for each layer and device, for `optuna-dashboard URL`.

    Values are median times in microseconds; failed trials keep their outcome, reason and message as attributes. The
    storage is another file than the results database. Run again, it adds the trials that came since.
    """
    from autotune.search.optuna_study import TimedTrial, write_study
    from autotune.store import Store, optuna_database

    name = name_of(what)
    target = optuna_database(storage)
    with Store(db, create=False) as store:
        groups = _studies(store.trials.list(name))
        if not groups:
            raise StoreError(f"{db}: {what} has no trial that ended; tune it first")
        for title, rows in groups.items():
            trials = [TimedTrial(r.trial, r.started_at, r.ended_at or r.started_at, r.proposed_by) for r in rows]
            with target.in_words():
                try:
                    new = write_study(target.url, title, trials, _values(store, rows), _attributes(rows[0]))
                except StudyError as error:
                    raise StudyError(f"{target.shown}: {error}") from None
            click.echo(f"{title}: {counted(len(trials), 'trial')}, {new} of them new")
    click.echo(f"{target.shown}: {counted(len(groups), 'study', 'studies')}; optuna-dashboard shows them")


def _studies(rows: Sequence[TrialRow]) -> dict[str, list[TrialRow]]:
    """Trials that ended, by the name of their study: layer, device, measurement mode, later generation."""
    found: dict[str, list[TrialRow]] = {}
    for row in rows:
        if row.trial.outcome != Outcome.RUNNING:
            study = row.study if row.generation == 1 else f"{row.study}@{row.generation}"
            title = f"{study}.{row.layer.name} on {row.device.name}, {row.measurement_mode}"
            found.setdefault(title, []).append(row)
    return found


def _values(store: Store, rows: Sequence[TrialRow]) -> Mapping[str, Mapping[str, Sequence[Value]]]:
    """The values that the families' headers declare, and those of trials that they have no more."""
    found: dict[str, dict[str, list[Value]]] = {}
    for family, template_hash in {(row.trial.config.template, row.template_hash): None for row in rows}:
        for param, declared in store.templates.params(family, template_hash).items():
            values = found.setdefault(family, {}).setdefault(param, [])
            values += [value for value in declared if value not in values]
    for row in rows:
        own = found.setdefault(row.trial.config.template, {})
        for param, value in row.trial.config.items:
            values = own.setdefault(param, [])
            if value not in values:
                values.append(value)
    return dict(sorted(found.items()))


def _attributes(row: TrialRow) -> dict[str, str | int]:
    """What the trials of a study have in common."""
    return {
        "study": row.study,
        "generation": row.generation,
        "layer": row.layer.name,
        "problem": str(row.problem),
        "device": row.device.name,
        "measurement_mode": row.measurement_mode,
    }
