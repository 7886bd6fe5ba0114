"""`tune` and `compare`: tune a study, showing progress, and show the best kernels at the end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import with_roofline
from autotune.cli.best import BEST_COLUMNS, show_best
from autotune.cli.cluster import CLUSTER, DEVICE_CLASS, tune_on_cluster
from autotune.cli.options import (
    DATABASE,
    DIRECTORIES,
    FAMILIES,
    JOBS,
    LAYERS,
    SECONDS,
    STUDY,
    NumberRange,
    run_on,
)
from autotune.cli.output import note
from autotune.cli.run import command_line, end_interrupted
from autotune.cli.summary import left, show_end_to_end, summary
from autotune.cli.tables import format_options
from autotune.devices.device import BASELINES
from autotune.errors import AutotuneError, StoreError, StudyError, shortened
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.study import SAMPLERS
from autotune.toml_table import LARGEST

if TYPE_CHECKING:
    from autotune.api.run_plan import RunPlan

BASELINE = click.option(
    "--baseline",
    "baselines",
    type=click.Choice(tuple(BASELINES)),
    multiple=True,
    help="Also time PyTorch's own kernels in the finals: cuDNN's operators (cudnn), torch.compile (inductor, which "
    "takes minutes to compile), or cuBLAS for gemm (cublas). May be repeated.",
)
FINALS_SECONDS = click.option(
    "--finals-seconds",
    type=SECONDS,
    help="Seconds for the finals of a layer. Default: 4; for all finals at most 30 and a fifth of --time-budget-total.",
)


@click.command()
@STUDY
@run_on("cuda:N, host, host:check, null or replay:FILE")
@DATABASE
@click.option("--trials", type=click.IntRange(min=1), help="Maximum number of configs to evaluate per layer.")
@click.option("--time-budget", type=SECONDS, help="Time limit per layer, seconds.")
@click.option("--trials-total", type=click.IntRange(min=1), help="Maximum number of configs to evaluate in all.")
@click.option(
    "--time-budget-total",
    type=SECONDS,
    help="Time limit for all layers together, including the listing of search spaces and the finals, seconds.",
)
@click.option(
    "--min-gain",
    type=NumberRange(0, 1, min_open=True, max_open=True),
    help="Stop when ten more evaluations are expected to gain less than this fraction.",
)
@FAMILIES
@DIRECTORIES
@LAYERS
@click.option("--seed", type=click.IntRange(0, LARGEST), help="Seed of the search.")
@click.option("--sampler", type=click.Choice(SAMPLERS), help="Search method; overrides the study.")
@click.option(
    "--warm-start/--no-warm-start",
    default=None,
    help="Start with the configs that the cost model and the results of similar layers predict to be fastest; "
    "overrides the study.",
)
@JOBS
@CLUSTER
@DEVICE_CLASS
@BASELINE
@FINALS_SECONDS
@click.option("--fresh", is_flag=True, help="Start over; stored results stay in the database.")
@format_options
def tune(
    study: str,
    device: str | None,
    db: str,
    trials: int | None,
    time_budget: float | None,
    trials_total: int | None,
    time_budget_total: float | None,
    min_gain: float | None,
    only_families: tuple[str, ...],
    directories: tuple[Path, ...],
    only_layers: tuple[str, ...],
    seed: int | None,
    sampler: str | None,
    warm_start: bool | None,
    jobs: int | None,
    cluster: str | None,
    classes: tuple[str, ...],
    baselines: tuple[str, ...],
    finals_seconds: float | None,
    fresh: bool,
    style: str | None,
) -> None:
    """Tune the layers of STUDY, which is a study file or a name.

    Layers are tuned concurrently. With a total budget, evaluations go to the layer with the largest expected saving.

    To resume, run the command again; nothing is evaluated twice. After Ctrl-C, autotune finishes the running trials,
    skips further finals, lists the layers that were not tuned, and exits with 130. It exits with 1 if any layer has no
    correct kernel.
    """
    from autotune.api.run_plan import Overrides, plan_run

    plan = plan_run(
        study,
        db,
        directories,
        layers=only_layers,
        overrides=Overrides(
            templates=only_families or None,
            trials=trials,
            time_budget_s=time_budget,
            trials_total=trials_total,
            time_budget_total_s=time_budget_total,
            min_gain=min_gain,
            seed=seed,
            sampler=sampler,
            warm_start=warm_start,
        ),
        baselines=baselines,
        finals_s=finals_seconds,
        fresh=fresh,
    )
    if cluster is not None:
        tune_on_cluster(plan, cluster, classes, db, style, device=device, jobs=jobs)
    elif classes:
        raise StudyError("--device-class requires --cluster; choose a device of this machine with --device")
    else:
        tune_and_show(plan, device, jobs, db, style)


@click.command()
@STUDY
@run_on("cuda:N or host")
@DATABASE
@DIRECTORIES
@LAYERS
@BASELINE
@FINALS_SECONDS
@JOBS
@format_options
def compare(
    study: str,
    device: str | None,
    db: str,
    directories: tuple[Path, ...],
    only_layers: tuple[str, ...],
    baselines: tuple[str, ...],
    finals_seconds: float | None,
    jobs: int | None,
    style: str | None,
) -> None:
    """Repeat just the finals of STUDY, using recorded kernels."""
    from autotune.api.run_plan import plan_run

    plan = plan_run(study, db, directories, layers=only_layers, baselines=baselines, finals_s=finals_seconds)
    tune_and_show(plan, device, jobs, db, style, search=False)


def tune_and_show(
    plan: RunPlan,
    device: str | None,
    jobs: int | None,
    db: str,
    style: str | None,
    *,
    search: bool = True,
) -> None:
    """Tune the layers and print the results. If a layer has no correct kernel, raises AutotuneError at the end."""
    from autotune.api.run import check_baselines, open_run
    from autotune.api.tuning import best_of, tune_layers

    study = plan.study
    check = partial(check_baselines, plan.finals)
    with open_run(study, device, jobs, db, command_line(study.name), on_results=not search, check=check) as run:
        evaluator, store, info = run.evaluator, run.store, run.evaluator.info
        if not search and not best_of(store, study, plan.names, info):
            raise StoreError(
                f"{db}: no correct kernel of {study.name} on {info.name} to compare; "
                f"{store.best.advice(study.name, info)}"
            )
        tuned = tune_layers(plan, run, search=search)
        kernels = [with_roofline(store, row) for row in tuned.best]
        interrupted = run.stopping()
    if search and study.end_to_end and not isinstance(evaluator, DeviceEvaluator):
        note(f"{study.name}: the {info.kind} device copies nothing: kernels only")
    for result in tuned.layers:
        for line in summary(result):
            note(line)
    if not tuned.end_to_end or style is None:
        show_best(kernels, BEST_COLUMNS, style)
    if tuned.end_to_end:
        show_end_to_end(tuned.end_to_end, style)
    if interrupted:
        end_interrupted(left(study, plan.layers, tuned.layers, "tuned" if search else "compared"))
    if lacking := [result for result in tuned.layers if result.best is None]:
        reasons = "; ".join(
            f"{result.layer.name} ({shortened(' '.join(result.why_not.split()), 160)})" for result in lacking
        )
        from autotune.checking.check import hint_at_reference

        hints = dict.fromkeys(
            hint_at_reference(result.layer.problem.operation) for result in lacking if result.all_wrong
        )
        raise AutotuneError(f"{study.name}: no correct kernel of {reasons}{''.join(hints)}")
