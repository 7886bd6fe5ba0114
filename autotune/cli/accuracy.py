"""`accuracy`: whether a network on the tuned kernels predicts what it predicts in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autotune.api.device_names import jobs_default
from autotune.api.study_names import study_named
from autotune.cli.devices import open_evaluator
from autotune.cli.options import DATABASE, JOBS, run_on
from autotune.cli.studies import STUDY
from autotune.cli.tables import Column, format_options, show
from autotune.errors import AutotuneError, DeviceError
from autotune.evaluation.evaluator import DeviceEvaluator

if TYPE_CHECKING:
    from autotune.analysis.accuracy import AccuracyRow
    from autotune.measurement.class_agreement import Agreement
    from autotune.store import BestRow


def _of(row: AccuracyRow, name: str) -> float | None:
    found: Agreement | None = row.agreement
    value: float | None = None if found is None else getattr(found, name)
    return value


def _kernel(best: BestRow) -> str:
    return f"{best.row.trial.config.template} ({best.row.trial.accuracy})"


_COLUMNS = (
    Column["AccuracyRow"]("accuracy", lambda row: row.accuracy),
    Column["AccuracyRow"]("images", lambda row: _of(row, "images")),
    Column["AccuracyRow"]("agreeing", lambda row: _of(row, "agreeing")),
    Column["AccuracyRow"]("agreeing_fraction", lambda row: _of(row, "fraction")),
    Column["AccuracyRow"]("largest_logit_difference", lambda row: _of(row, "largest_difference")),
    Column["AccuracyRow"]("largest_class_fraction", lambda row: _of(row, "largest_share")),
    Column["AccuracyRow"]("first", lambda row: _kernel(row.kernels[0])),
    Column["AccuracyRow"]("second", lambda row: _kernel(row.kernels[1])),
    Column["AccuracyRow"]("first_config", lambda row: row.kernels[0].row.trial.config, terminal=False),
    Column["AccuracyRow"]("second_config", lambda row: row.kernels[1].row.trial.config, terminal=False),
    Column["AccuracyRow"]("passed", lambda row: row.passed),
    Column["AccuracyRow"]("failure", lambda row: row.failure),
)


@click.command()
@STUDY
@run_on("cuda:N or host")
@DATABASE
@click.option("--images", type=click.IntRange(min=2), default=10_000, show_default=True, help="Images to classify.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the images and weights.")
@JOBS
@format_options
def accuracy(
    study: str, device: str | None, db: str, images: int, seed: int, jobs: int | None, style: str | None
) -> None:
    """Check STUDY's tuned kernels in a network against float64.

    The classes that a LeNet-like network predicts on them are compared.

    The study's two layers must follow each other, with ReLU and 2x2 max pooling after each. The classes fp32 and
    fp32-3xtf32 must agree on 99.9 % of the images; the others are reported.
    """
    from autotune.analysis.accuracy import LEAST_AGREEMENT, chained, check_accuracy
    from autotune.store import Store

    wanted = study_named(study, db)
    chained(wanted)
    with Store(db, create=False) as store:
        evaluator = open_evaluator(device, jobs or jobs_default())
        try:
            if not isinstance(evaluator, DeviceEvaluator):
                raise DeviceError(f"the {evaluator.info.kind} device runs no network; take cuda:N or host")
            rows = list(check_accuracy(wanted, evaluator, store, images=images, seed=seed))
        finally:
            evaluator.close()
    show(rows, _COLUMNS, style)
    broken = [row.accuracy for row in rows if row.passed is False]
    if broken:
        raise AutotuneError(
            f"{wanted.name}: {', '.join(broken)}: the network predicts other classes than in float64 on more than "
            f"{1 - LEAST_AGREEMENT:.1%} of the images"
        )
