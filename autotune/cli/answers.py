"""`best`, `trials` and `query`: questions to the results database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.tables import Cell, Column, format_options, show
from autotune.floor import floor_us
from autotune.study import load_study
from autotune.trial import Outcome

if TYPE_CHECKING:
    from autotune.store import BestRow, Store, TrialRow

DATABASE = click.option("--db", default="autotune.db", show_default=True, help="Results database: a path or a URL.")


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False)
@DATABASE
@format_options
def best(what: str | None, db: str, style: str | None) -> None:
    """The best kernel of each layer, device and accuracy class."""
    from autotune.store import Store

    with Store.open(db, create=False) as store:
        show([with_floor(store, row) for row in store.best(asked(what))], BEST_COLUMNS, style)


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False)
@DATABASE
@click.option("--outcome", type=click.Choice([word.value for word in Outcome]), help="Only trials that ended so.")
@click.option("--sort", type=click.Choice(["number", "median", "registers", "error", "started"]), default="number")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many rows.")
@format_options
def trials(what: str | None, db: str, outcome: str | None, sort: str, limit: int | None, style: str | None) -> None:
    """Every trial, with its outcome and time."""
    from autotune.store import Store

    with Store.open(db, create=False) as store:
        show(store.trials(asked(what), outcome=outcome, sort=sort, limit=limit), TRIAL_COLUMNS, style)


@click.command()
@click.argument("sql", metavar="SQL")
@DATABASE
@format_options
def query(sql: str, db: str, style: str | None) -> None:
    """Run one read-only SQL statement on the results database."""
    from autotune.store import Store

    with Store.open(db, create=False) as store:
        found = store.query(sql)
    columns = [Column[tuple[Cell, ...]](name, _at(position)) for position, name in enumerate(found.columns)]
    show([tuple(_cell(value) for value in row) for row in found.rows], columns, style)


def asked(what: str | None) -> str | None:
    """A study's or layer's name; a study file stands for the name in it."""
    if what is not None and what.endswith(".toml") and Path(what).is_file():
        return load_study(Path(what)).name
    return what


@dataclass(frozen=True, slots=True)
class Standing:
    """A best row set against the floor of its device."""

    best: BestRow
    floor_us: float | None

    @property
    def fraction(self) -> float | None:
        """Share of the floor's speed that the kernel reaches, 1 at the physical limit."""
        return self.floor_us / self.best.median_us if self.floor_us else None


def with_floor(store: Store, row: BestRow) -> Standing:
    """Set a best row against what its device can do, as far as that was calibrated."""
    rates: Mapping[str, float] = store.rates(row.row.device)
    return Standing(row, floor_us(row.layer.problem, row.row.trial.accuracy, rates))


def _at(position: int) -> Callable[[tuple[Cell, ...]], Cell]:
    return lambda row: row[position]


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


BEST_COLUMNS = (
    Column[Standing]("layer", lambda row: row.best.name),
    Column[Standing]("problem", lambda row: str(row.best.layer.problem), terminal=False),
    Column[Standing]("device", lambda row: row.best.row.device.name),
    Column[Standing]("accuracy", lambda row: row.best.row.trial.accuracy),
    Column[Standing]("deterministic", lambda row: row.best.row.trial.deterministic, terminal=False),
    Column[Standing]("median_us", lambda row: row.best.timing.median_us),
    Column[Standing]("q1_us", lambda row: row.best.timing.q1_us, terminal=False),
    Column[Standing]("q3_us", lambda row: row.best.timing.q3_us, terminal=False),
    Column[Standing]("samples", lambda row: len(row.best.timing.samples_us), terminal=False),
    Column[Standing]("gflops", lambda row: row.best.gflops),
    Column[Standing]("floor_us", lambda row: row.floor_us, terminal=False),
    Column[Standing]("floor_fraction", lambda row: row.fraction),
    Column[Standing]("template", lambda row: row.best.row.trial.config.template),
    Column[Standing]("config", lambda row: config_words(row.best.row)),
    Column[Standing]("registers", lambda row: row.best.row.trial.resources.registers, terminal=False),
    Column[Standing]("spill_bytes", lambda row: row.best.row.trial.resources.spill_bytes, terminal=False),
    Column[Standing]("smem_bytes", lambda row: row.best.row.trial.smem_bytes, terminal=False),
    Column[Standing]("occupancy", lambda row: row.best.row.trial.occupancy, terminal=False),
    Column[Standing]("error_over_bound", lambda row: row.best.row.trial.over_bound, terminal=False),
    Column[Standing]("basis", lambda row: row.best.basis, terminal=False),
    Column[Standing]("policy", lambda row: row.best.row.policy, terminal=False),
    Column[Standing]("driver", lambda row: row.best.row.environment.driver, terminal=False),
    Column[Standing]("toolkit", lambda row: row.best.row.environment.toolkit, terminal=False),
    Column[Standing]("date", lambda row: str(row.best.row.ended_at), terminal=False),
    Column[Standing]("source_hash", lambda row: row.best.row.trial.source_hash, terminal=False),
)


def config_words(row: TrialRow) -> str:
    """A config's parameters as `name=value` words."""
    return " ".join(f"{name}={value}" for name, value in row.trial.config.items)


TRIAL_COLUMNS = (
    Column["TrialRow"]("layer", lambda row: row.name),
    Column["TrialRow"]("number", lambda row: row.trial.number),
    Column["TrialRow"]("device", lambda row: row.device.name, terminal=False),
    Column["TrialRow"]("template", lambda row: row.trial.config.template),
    Column["TrialRow"]("config", config_words),
    Column["TrialRow"]("accuracy", lambda row: row.trial.accuracy, terminal=False),
    Column["TrialRow"]("outcome", lambda row: row.trial.outcome.value),
    Column["TrialRow"]("reason", lambda row: row.trial.reason),
    Column["TrialRow"]("median_us", lambda row: row.median_us),
    Column["TrialRow"]("gflops", lambda row: row.gflops),
    Column["TrialRow"]("registers", lambda row: row.trial.resources.registers if row.trial.compiled else None),
    Column["TrialRow"]("spill_bytes", lambda row: row.trial.resources.spill_bytes if row.trial.compiled else None),
    Column["TrialRow"]("smem_bytes", lambda row: row.trial.smem_bytes if row.trial.compiled else None),
    Column["TrialRow"]("occupancy", lambda row: row.trial.occupancy),
    Column["TrialRow"]("error_over_bound", lambda row: row.trial.over_bound, terminal=False),
    Column["TrialRow"]("compile_us", lambda row: row.trial.phases.compile_us, terminal=False),
    Column["TrialRow"]("verify_us", lambda row: row.trial.phases.verify_us, terminal=False),
    Column["TrialRow"]("measure_us", lambda row: row.trial.phases.measure_us, terminal=False),
    Column["TrialRow"]("message", lambda row: row.trial.message, terminal=False),
    Column["TrialRow"]("source_hash", lambda row: row.trial.source_hash, terminal=False),
    Column["TrialRow"]("date", lambda row: str(row.ended_at), terminal=False),
)
