"""`stale`: best results that an upgrade of the driver, the toolkit or a template made doubtful."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import best_per_class
from autotune.api.device_names import binary_cache, jobs_default
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.devices import open_evaluator, present_devices
from autotune.cli.options import DATABASE, DIRECTORIES
from autotune.cli.progress import counting
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.evaluation.null import NullEvaluator
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.operation.registry import operations_here

if TYPE_CHECKING:
    from autotune.analysis.stale import StaleResult
    from autotune.devices.device import DeviceInfo, Environment
    from autotune.family.source import KernelSource
    from autotune.store import BestRow, RetimeRow


_QUIET_S = 2.0  # for which `stale` says nothing but its answer


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@DIRECTORIES
@click.option("--device", help="Compare with this device: cuda:N, host or null; default: every device of this machine.")
@format_options
def stale(what: str | None, db: str, directories: tuple[Path, ...], device: str | None, style: str | None) -> None:
    """List best results that may be out of date after an upgrade.

    There is a row for each change of driver, toolkit or template.

    A result is compared with its device if that is in this machine, otherwise with the newest recorded run on that
    device. Templates are compared with the installed ones. A changed template is not listed if it renders the same
    kernel, or, where nvcc is installed, a kernel that compiles to the same machine code.
    """
    from autotune.analysis.stale import same_machine_code
    from autotune.store import Store
    from autotune.workers.compilers import CompilePool

    name = name_of(what)
    with Store(db, create=False) as store:
        best = best_per_class(store.best.list(name))
        families = load_templates(directories, operations_here((row.layer.problem.operation for row in best), what))
        kinds = {row.row.device.kind for row in best}
        opened = _opened(device, kinds)
        retimes = store.retimes.list(name)
        with closing(CompilePool(jobs_default(), binary_cache())) as pool, counting("stale", len(best)) as tell:
            same = partial(same_machine_code, store, pool)
            found = list(_stale_results(best, retimes, opened, store.devices.environments(), families, same, tell))
    doubtful = {result.best.row.id for result in found}
    click.echo(f"{len(doubtful)} of {len(best)} best results are doubtful", err=True)
    show(found, _STALE_COLUMNS, style)


def _opened(device: str | None, kinds: set[str]) -> list[tuple[DeviceInfo, Environment]]:
    """The devices of these kinds that are here, or the one asked for, as they are now."""
    if device is not None:
        evaluator = open_evaluator(device, 1)
        evaluator.close()
        return [(evaluator.info, evaluator.environment)]
    null = [NullEvaluator("")] if "null" in kinds else []
    return [
        *((evaluator.info, evaluator.environment) for _, evaluator in present_devices(kinds)),
        *((evaluator.info, evaluator.environment) for evaluator in null),
    ]


def _stale_results(
    best: Sequence[BestRow],
    retimes: Sequence[RetimeRow],
    opened: Sequence[tuple[DeviceInfo, Environment]],
    recorded: Sequence[tuple[DeviceInfo, Environment]],
    families: Mapping[str, KernelTemplate],
    is_same: Callable[[BestRow, KernelSource], bool],
    tell: Callable[[int, str], None],
) -> Iterator[StaleResult]:
    from autotune.analysis.stale import present_of, stale_results

    measured = {retime.row.id: retime.environment for retime in retimes if retime.timing is not None}  # the latest
    begun = time.monotonic()
    for done, row in enumerate(best):
        if time.monotonic() - begun > _QUIET_S:
            tell(done, row.name)
        environment = measured.get(row.row.id, row.row.environment)
        yield from stale_results(row, environment, present_of(row.row.device, opened, recorded), families, is_same)


_STALE_COLUMNS = (
    Column["StaleResult"]("layer", lambda result: result.best.name),
    Column["StaleResult"]("device", lambda result: result.best.row.device.name),
    Column["StaleResult"]("accuracy", lambda result: result.best.row.trial.accuracy),
    Column["StaleResult"]("measurement_mode", lambda result: result.best.row.measurement_mode, terminal=False),
    Column["StaleResult"]("median_us", lambda result: result.best.median_us),
    Column["StaleResult"]("template", lambda result: result.best.row.trial.config.template),
    Column["StaleResult"]("config", lambda result: result.best.row.trial.config, terminal=False),
    Column["StaleResult"]("date", lambda result: result.best.row.ended_at, terminal=False),
    Column["StaleResult"]("changed", lambda result: result.changed),
    Column["StaleResult"]("was", lambda result: result.was),
    Column["StaleResult"]("now", lambda result: result.now),
    Column["StaleResult"]("compared_with", lambda result: result.against),
)
