"""`stale` and `retime`: list best results that may be out of date, and time kernels again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from autotune.analysis.retime import Changes, LayerPlan, Retimed, StaleResult, plans, template_change
from autotune.analysis.retime import retime as measure_again
from autotune.analysis.trial_rows import kernel_cells
from autotune.api.study_names import name_of
from autotune.cli.options import DATABASE, DIRECTORIES, JOBS, run_on, studies_and_layers
from autotune.cli.output import note
from autotune.cli.progress import counting
from autotune.cli.run import end_interrupted, open_evaluator, present_devices, stopping_on_interrupt
from autotune.cli.tables import format_options, show
from autotune.columns import Cells, field_cells, key_columns
from autotune.devices.device import DeviceInfo, Environment
from autotune.devices.host_machine import usable_cores
from autotune.errors import StoreError
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_recorded_templates
from autotune.store import Store, TrialRow


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@DIRECTORIES
@click.option("--device", help="Compare with this device: cuda:N, host or null; default: every device of this machine.")
@format_options
def stale(what: str | None, db: str, directories: tuple[Path, ...], device: str | None, style: str | None) -> None:
    """List best results that may be out of date after an upgrade.

    There is a row for each change of driver, toolkit or template.

    Results are compared with their device if it is in this machine, or else with the newest recorded run on that
    device. Templates are compared with the installed ones. A changed template is not listed if it renders the same
    kernel.
    """
    name = name_of(what, directories)
    with Store(db, create=False) as store:
        changes = Changes(store, name, _opened(device, {info.kind for info in store.devices.list()}))
        best = store.best.list(name)
        families = load_recorded_templates(directories, (row.layer.problem.operation for row in best), what)
        found = [change for row in best for change in (*changes.of(row), *template_change(row, families))]
    doubtful = {(one.best.name, one.best.row.id) for one in found}
    note(f"{len(doubtful)} of {len(best)} best results may be out of date")
    show(map(_stale_cells, found), _STALE_COLUMNS, style)


def _opened(device: str | None, kinds: set[str]) -> list[tuple[DeviceInfo, Environment]]:
    """Open this machine's devices of these kinds, or the device `--device`, and return each with its environment."""
    if device is not None:
        evaluator = open_evaluator(device, 1)
        evaluator.close()
        return [(evaluator.info, evaluator.environment)]
    opened = [(evaluator.info, evaluator.environment) for _, evaluator in present_devices(kinds)]
    if "null" in kinds:
        null = NullEvaluator("")
        opened.append((null.info, null.environment))
    return opened


_STALE_COLUMNS = (
    *key_columns("layer", "device", "accuracy"),
    *key_columns("measurement_mode", hidden=True),
    *key_columns("median_us", "template"),
    *key_columns("config", "date", hidden=True),
    *key_columns("changed", "was", "now", "compared_with"),
)


def _stale_cells(one: StaleResult) -> Cells:
    return {**kernel_cells(one.best.row), **field_cells(one), "layer": one.best.name, "median_us": one.best.median_us}


WINNER_LOST = 3
"""exit code if a winner regressed beyond noise or is no longer correct"""


def _judge(layers: Sequence[LayerPlan], kernels: Sequence[Retimed], db: str) -> None:
    """Exit with WINNER_LOST if a winner regressed or failed. Raises StoreError if no kernel was re-timed."""
    if not kernels:
        raise StoreError(f"{db}: nothing was re-timed, so nothing is known about the winners")
    winners = {row.id for layer in layers for row in layer.winners}
    lost = [one for one in kernels if one.before.id in winners and one.retime.label in ("regressed", "failed")]
    if lost:
        names = ", ".join(f"{one.before.name} ({one.before.trial.accuracy}) {one.retime.label}" for one in lost)
        note(f"autotune: {len(lost)} of {len(winners)} winners regressed or failed: {names}")
        sys.exit(WINNER_LOST)


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@run_on()
@click.option(
    "--best", "most", type=click.IntRange(min=1), default=3, show_default=True, help="Number of kernels per layer."
)
@DATABASE
@DIRECTORIES
@JOBS
@format_options
def retime(
    what: str | None,
    device: str | None,
    most: int,
    db: str,
    directories: tuple[Path, ...],
    jobs: int | None,
    style: str | None,
) -> None:
    """Verify and time the best few kernels of each layer again.

    Each kernel is marked `confirmed`, `moved`, `regressed` or `failed`.

    `moved` means faster and `regressed` slower than before, by more than the noise floor. `failed` means that the
    kernel is no longer correct. Kernels imported for this device are included; once re-timed, they are treated as
    measured here.

    A winner is a kernel that `best` shows or, if a layer has none, its fastest imported kernel. `retime` exits with 3
    if a winner regressed or failed, with 1 if nothing was re-timed, and with 130 if Ctrl-C ended it after the current
    layer.
    """
    name = name_of(what, directories)
    with Store(db, create=False) as store:
        operations = [row.layer.problem.operation for row in store.studies.layers(name)]
    families = load_recorded_templates(directories, operations, what)  # a wrong name is reported before a device opens
    with (
        closing(open_evaluator(device, jobs or usable_cores())) as evaluator,
        Store(db) as store,
        stopping_on_interrupt() as stopping,
    ):
        layers = plans(store, name, evaluator.info, most)
        kernels: list[Retimed] = []
        left = []
        with counting("retime", sum(len(layer.rows) for layer in layers)) as tell:
            tell(0, "")
            for layer in layers:
                if not layer.rows:
                    note(f"{layer.name}: no correct trial of {evaluator.info.name} to re-time")
                elif stopping():
                    left.append(layer.name)
                else:
                    say = partial(_say_why_not, layer.name)
                    for result in measure_again(layer.rows, layer.problem, evaluator, store, families, say=say):
                        kernels.append(result)
                        tell(len(kernels), _counts(kernels))
        interrupted = stopping()
    if kernels:
        note(_counts(kernels))
    show(map(_retime_cells, kernels), _RETIME_COLUMNS, style)
    if interrupted:
        end_interrupted(f"not re-timed: {', '.join(left)}" if left else "every layer was re-timed", resumes=False)
    _judge(layers, kernels, db)


def _say_why_not(layer: str, row: TrialRow, why: str) -> None:
    note(f"{layer}: trial {row.trial.number} is not re-timed: {why}")


def _counts(kernels: Sequence[Retimed]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(one.retime.label for one in kernels).items())


_RETIME_COLUMNS = (
    *key_columns("layer", "trial", "device", "accuracy"),
    *key_columns("measurement_mode", "template", hidden=True),
    *key_columns("config", below=True),
    *key_columns("origin", "before_us", "after_us", "after_over_before", "noise_fraction", "label"),
    *key_columns("message", below=True),
    *key_columns("driver_before", "driver", "toolkit_before", "toolkit", hidden=True),
)


def _retime_cells(one: Retimed) -> Cells:
    before, after = one.before.environment, one.retime.environment
    return {
        **kernel_cells(one.before),
        "before_us": one.retime.before_us,
        "after_us": one.retime.after_us,
        "after_over_before": one.retime.ratio,
        "noise_fraction": one.noise,
        "label": one.retime.label,
        "message": one.retime.message or None,
        "driver_before": before.driver,
        "driver": after.driver,
        "toolkit_before": before.toolkit,
        "toolkit": after.toolkit,
    }
