"""`ladder`: what each technique of a study gains."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.answers import DATABASE
from autotune.cli.devices import jobs_default, open_evaluator
from autotune.cli.families import DIRECTORIES
from autotune.cli.interrupts import end_interrupted
from autotune.cli.tables import Column, format_options, show
from autotune.cli.tune import chosen_layers, under_way
from autotune.family.template import load_templates
from autotune.study import find_study, load_study

if TYPE_CHECKING:
    from autotune.tuning.ladder import Rung


def _config(rung: Rung) -> str | None:
    return " ".join(f"{name}={value}" for name, value in rung.config.items) if rung.config else None


_COLUMNS = (
    Column["Rung"]("layer", lambda rung: rung.layer),
    Column["Rung"]("technique", lambda rung: rung.technique.name),
    Column["Rung"]("report", lambda rung: rung.technique.report),
    Column["Rung"]("reported_ms", lambda rung: rung.reported_ms),
    Column["Rung"]("best_us", lambda rung: rung.best_us),
    Column["Rung"]("over_first", lambda rung: rung.over_first),
    Column["Rung"]("over_previous", lambda rung: rung.over_previous),
    Column["Rung"]("evaluated", lambda rung: rung.evaluated),
    Column["Rung"]("template", lambda rung: rung.technique.template, terminal=False),
    Column["Rung"]("config", _config, terminal=False),
    Column["Rung"]("why_not", lambda rung: rung.why_not),
)


@click.command()
@click.argument("study", metavar="STUDY")
@click.option("--device", help="cuda:N, host or null; default: the first CUDA device, else the host.")
@DATABASE
@DIRECTORIES
@click.option("--layer", "only_layers", multiple=True, help="Only this layer; may be repeated.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once; default: every core.")
@format_options
def ladder(
    study: str,
    device: str | None,
    db: str,
    directories: tuple[Path, ...],
    only_layers: tuple[str, ...],
    jobs: int | None,
    style: str | None,
) -> None:
    """Tune each technique of STUDY by itself and show what it gains over the first and over the one before.

    The reports' own times stand beside it; they are of other GPUs.
    """
    from autotune.store import Store
    from autotune.tuning.ladder import check_techniques, climb

    wanted = load_study(find_study(study))
    layers = chosen_layers(wanted, only_layers)
    families = load_templates(directories)
    check_techniques(wanted, families)  # before a database is made
    with (
        closing(open_evaluator(device, jobs or jobs_default())) as evaluator,
        Store(db) as store,
        under_way(store, wanted, evaluator) as (observe, stopping),
    ):
        rungs = climb(wanted, families, evaluator, store, layers=layers, observe=observe, stopping=stopping)
        interrupted = stopping()
    show(sorted(rungs, key=lambda rung: [layer.name for layer in layers].index(rung.layer)), _COLUMNS, style)
    if interrupted:
        end_interrupted(f"{len(rungs)} of {len(wanted.techniques) * len(layers)} rows were measured, the last in part")
