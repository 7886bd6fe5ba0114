"""`ladder`: show the gain of each technique of a study, and the profile of its best kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.device_names import evaluator_of
from autotune.api.study_names import study_named
from autotune.cli.options import DATABASE, DIRECTORIES, JOBS, LAYERS, STUDY, refuse_with, run_on
from autotune.cli.profile import COUNTER_COLUMNS, counter_cells, profile_kernels, require_profiler
from autotune.cli.run import command_line, end_interrupted
from autotune.cli.tables import show, wide_format_options
from autotune.columns import Cells, Column, Shares, field_cells, key_columns
from autotune.compilation.toolchain import find_ncu
from autotune.devices.host_machine import usable_cores
from autotune.errors import StoreError, ToolchainError, shortened
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.store import Store, TrialRow
    from autotune.trial import KernelProfile
    from autotune.tuning.ladder import LadderStep


_COLUMNS = (
    *key_columns("device", "layer", "technique"),
    *key_columns("report", "reported", "reported_ms", hidden=True),
    *key_columns("best_us", "over_first"),
    *key_columns("over_previous", "evaluated", "template", "config", hidden=True),
    Column("why_not", text=lambda row: shortened(row["why_not"], 160), below=True),
    *key_columns("registers", "smem_bytes", "occupancy", "launch_shares", hidden=True),
    *(replace(column, terminal=False) for column in COUNTER_COLUMNS),
)


def _cells(step: LadderStep, launches: Sequence[KernelProfile]) -> Cells:
    """Return a step's cells, with the profile of the longest launch of its best kernel.

    `launches` are the launches of one forward pass as profiled, in order, or empty if there is no profile.
    """
    trial, device = (step.best.trial, step.best.device.name) if step.best else (None, None)
    return {
        **counter_cells(max(launches, key=lambda launch: launch.time_us or 0.0, default=None)),
        **field_cells(step),
        "device": device,
        "technique": step.technique.name,
        "report": step.technique.report,
        "reported": step.technique.reported,
        "reported_ms": step.reported_ms,
        "best_us": step.best_us,
        "template": step.technique.template,
        "config": step.config,
        "registers": trial and trial.resources.registers,
        "smem_bytes": trial and trial.smem_bytes,
        "occupancy": trial and trial.occupancy,
        "launch_shares": _launch_shares(launches),
    }


def _launch_shares(launches: Sequence[KernelProfile]) -> Shares | None:
    """Return each launch's share of the total time, if there are several launches."""
    total = sum(launch.time_us or 0.0 for launch in launches)
    if len(launches) < 2 or not total:
        return None
    shares = [(launch.entry, (launch.time_us or 0.0) / total) for launch in launches]
    return Shares(tuple(sorted(shares, key=lambda share: -share[1])))


@click.command()
@STUDY
@run_on()
@DATABASE
@DIRECTORIES
@LAYERS
@click.option(
    "--trials", type=click.IntRange(min=1), help="Maximum number of evaluated configs per technique and layer."
)
@JOBS
@click.option("--profile", is_flag=True, help="Also run each technique's best kernel under Nsight Compute.")
@click.option("--stored", is_flag=True, help="Print the stored ladders; run nothing.")
@wide_format_options
def ladder(
    study: str,
    device: str | None,
    db: str,
    directories: tuple[Path, ...],
    only_layers: tuple[str, ...],
    trials: int | None,
    jobs: int | None,
    profile: bool,
    stored: bool,
    style: str | None,
) -> None:
    """Tune each technique of STUDY separately and show its gain.

    Gains are relative to the first technique and to the previous one. The table also shows the report's times, which
    were measured on another GPU, and the profiler's metrics.
    """
    if stored:
        refuse_with("--stored", "device", "trials", "jobs", "profile")
        from autotune.api.run_plan import layers_named

        recorded = study_named(study, db, directories)
        _show_stored(recorded, layers_named(recorded, only_layers), db, style)
        return
    from autotune.api.run import open_run
    from autotune.api.run_plan import Overrides, plan_run
    from autotune.tuning.ladder import climb, require_techniques

    plan = plan_run(study, db, directories, layers=only_layers, overrides=Overrides(trials=trials))
    require_techniques(plan.study)
    if trials is not None:
        techniques = tuple(replace(one, trials=None) for one in plan.study.techniques)
        plan = replace(plan, study=replace(plan.study, techniques=techniques))
    ncu = find_ncu() if profile else None  # raises before anything is tuned
    check = require_profiler if profile else lambda _: None
    with open_run(plan.study, device, jobs, db, command_line(plan.study.name), check=check) as run:
        steps = climb(
            *(plan.study, plan.families, run.evaluator, run.store),
            layers=plan.layers,
            observe=run.observe,
            stopping=run.stopping,
        )
        interrupted = run.stopping()
    failure = None if ncu is None else _profile(steps, ncu, device, db, plan.families)
    _show(steps, db, style)
    if interrupted:
        measured = sum(step.best is not None for step in steps)
        end_interrupted(
            f"{measured} of {len(plan.study.techniques) * len(plan.layers)} rows were measured, the last in part"
        )
    if failure is not None:
        raise failure


def _profile(
    steps: Sequence[LadderStep], ncu: Path, device: str | None, db: str, families: Mapping[str, KernelTemplate]
) -> ToolchainError | None:
    """Profile the best kernels without a stored profile, each once.

    Errors are returned, so that they can be raised after the ladder has been printed.
    """
    from autotune.store import Store

    with Store(db) as store:
        profiled = _launches(store)
        rows = [step.best for step in steps if step.best and _kernel(step.best) not in profiled]
        best = {row.trial.source_hash: row for row in rows}
        try:
            if best:
                # no message, because the run has already printed the device's name
                evaluator = evaluator_of(device, usable_cores())
                profile_kernels(store, ncu, device, evaluator, list(best.values()), families)
        except ToolchainError as error:
            return error
    return None


def _show_stored(study: Study, layers: Sequence[Layer], db: str, style: str | None) -> None:
    """Print a ladder for each device, environment and measurement mode in the study's newest generation."""
    from autotune.store import Store
    from autotune.tuning.ladder import circumstances, ladder_steps, require_techniques

    require_techniques(study)
    with Store(db, create=False) as store:
        ladders = [
            ladder_steps(study, layers, rows, {}) for rows in circumstances(store.trials.list(study.name)).values()
        ]
    if not any(step.best for steps in ladders for step in steps):
        raise StoreError(f"{db}: no technique of {study.name} was tried; run `autotune ladder STUDY` first")
    _show([step for steps in ladders for step in steps], db, style)


def _show(steps: Sequence[LadderStep], db: str, style: str | None) -> None:
    """Print the steps, with the stored profiles of their kernels from any study."""
    from autotune.store import Store

    with Store(db, create=False) as store:
        profiles = _launches(store)
    rows = [_cells(step, profiles.get(_kernel(step.best), ()) if step.best else ()) for step in steps]
    show(rows, _COLUMNS, style, apart=["layer"])


_Kernel = tuple[str | None, tuple[str, str, int, int, int]]
"""The hash of a kernel's source, and the identity of a device."""


def _kernel(row: TrialRow) -> _Kernel:
    return row.trial.source_hash, row.device.identity


def _launches(store: Store) -> dict[_Kernel, Sequence[KernelProfile]]:
    """Return the launches in the latest profile of each profiled kernel, in order."""
    launches: dict[_Kernel, dict[int, KernelProfile]] = {}
    for row in store.profiles.list():  # oldest first
        launches.setdefault(_kernel(row.row), {})[row.profile.position] = row.profile
    return {kernel: [stages[position] for position in sorted(stages)] for kernel, stages in launches.items()}
