"""`stale`: best results that an upgrade of the driver, the toolkit or a template made doubtful."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.device_names import binary_cache, jobs_default
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.devices import open_evaluator, present_devices
from autotune.cli.options import DATABASE, DIRECTORIES
from autotune.cli.progress import counting
from autotune.cli.tables import format_options, show
from autotune.columns import Cells, key_column
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.operation.registry import operations_here

if TYPE_CHECKING:
    from autotune.devices.device import DeviceInfo, Environment


_QUIET_S = 2.0  # without progress


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
    from autotune.analysis.stale import StaleResults
    from autotune.store import Store, stored_problem
    from autotune.workers.compilers import CompilePool

    name = name_of(what)
    with Store(db, create=False) as store, closing(CompilePool(jobs_default(), binary_cache())) as pool:
        devices = store.devices.by_id()
        rows = store.results.stale(name, _opened(device, {info.kind for info in devices.values()}))
        shapes = {(row["operation"], row["problem"], row["declaration"]) for row in rows}
        families = load_templates(
            directories, operations_here((stored_problem(*shape).operation for shape in shapes), what)
        )
        with counting("stale", len(rows)) as tell:
            found = list(StaleResults(store, families, pool, devices).rows(_counted(rows, tell)))
    doubtful, best = ({row["trial_id"] for row in some} for some in (found, rows))
    click.echo(f"{len(doubtful)} of {len(best)} best results are doubtful", err=True)
    show(found, _STALE_COLUMNS, style)


def _counted(rows: Iterable[Cells], tell: Callable[[int, str], None]) -> Iterator[Cells]:
    """The rows; the progress is shown after _QUIET_S."""
    begun = time.monotonic()
    for done, row in enumerate(rows):
        if time.monotonic() - begun > _QUIET_S:
            tell(done, row["layer"])
        yield row


def _opened(device: str | None, kinds: set[str]) -> list[tuple[DeviceInfo, Environment]]:
    """The devices of these kinds in this machine, or the one that `--device` names, with their environments."""
    if device is not None:
        evaluator = open_evaluator(device, 1)
        evaluator.close()
        return [(evaluator.info, evaluator.environment)]
    null = [NullEvaluator("")] if "null" in kinds else []
    return [
        *((evaluator.info, evaluator.environment) for _, evaluator in present_devices(kinds)),
        *((evaluator.info, evaluator.environment) for evaluator in null),
    ]


_STALE_COLUMNS = (
    *map(key_column, ("layer", "device", "accuracy")),
    key_column("measurement_mode", terminal=False),
    *map(key_column, ("median_us", "template")),
    key_column("config", terminal=False),
    key_column("date", terminal=False),
    *map(key_column, ("changed", "was", "now", "compared_with")),
)
