"""`stale` and `retime`: which best results may no longer hold, and measuring them again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import undominated
from autotune.api.device_names import binary_cache, jobs_default
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.devices import open_evaluator, present_devices
from autotune.cli.interrupts import end_interrupted, stopping_on_interrupt
from autotune.cli.junit import junit_xml
from autotune.cli.options import DATABASE, DIRECTORIES, JOBS, run_on, writable
from autotune.cli.progress import counting
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.evaluation.null import NullEvaluator
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.operations import operations_here
from autotune.writing import check_writable, write_whole

if TYPE_CHECKING:
    from autotune.analysis.retime import NotRetimed, Retimed
    from autotune.analysis.stale import Doubt
    from autotune.devices.device import DeviceInfo, Environment
    from autotune.family.source import KernelSource
    from autotune.store import BestRow, RetimeRow


_QUIET_S = 2.0  # for which `stale` says nothing but its answer


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@DIRECTORIES
@click.option("--device", help="Compare with this device: cuda:N, host or null; default: every device that is here.")
@format_options
def stale(what: str | None, db: str, directories: tuple[Path, ...], device: str | None, style: str | None) -> None:
    """Best results that an upgrade has made doubtful.

    A row for each change of driver, toolkit or template.

    A result of a device that is here is compared with that device now; any other with the newest run recorded on its
    device. Templates are compared with those installed: one that renders the very same kernel makes nothing doubtful,
    nor does one whose text has other names or comments now and compiles to the same machine code, where nvcc is here.
    """
    from autotune.analysis.same_code import same_machine_code
    from autotune.store import Store
    from autotune.workers.compilers import CompilePool

    name = name_of(what)
    with Store(db, create=False) as store:
        best = undominated(store.best.list(name))
        families = load_templates(directories, operations_here((row.layer.problem.operation for row in best), what))
        kinds = {row.row.device.kind for row in best}
        opened = _opened(device, kinds)
        retimes = store.retimes.list(name)
        with closing(CompilePool(jobs_default(), binary_cache())) as pool, counting("stale", len(best)) as tell:
            same = partial(same_machine_code, store, pool)
            found = list(_doubts(best, retimes, opened, store.devices.environments(), families, same, tell))
    doubtful = {doubt.best.row.id for doubt in found}
    click.echo(f"{len(doubtful)} of {len(best)} best results are doubtful", err=True)
    show(found, _DOUBT_COLUMNS, style)


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


def _doubts(
    best: Sequence[BestRow],
    retimes: Sequence[RetimeRow],
    opened: Sequence[tuple[DeviceInfo, Environment]],
    recorded: Sequence[tuple[DeviceInfo, Environment]],
    families: Mapping[str, KernelTemplate],
    is_same: Callable[[BestRow, KernelSource], bool],
    tell: Callable[[int, str], None],
) -> Iterator[Doubt]:
    from autotune.analysis.stale import doubts, present_of

    measured = {retime.row.id: retime.environment for retime in retimes if retime.timing is not None}  # the latest
    begun = time.monotonic()
    for done, row in enumerate(best):
        if time.monotonic() - begun > _QUIET_S:
            tell(done, row.name)
        environment = measured.get(row.row.id, row.row.environment)
        yield from doubts(row, environment, present_of(row.row.device, opened, recorded), families, is_same)


_DOUBT_COLUMNS = (
    Column["Doubt"]("layer", lambda doubt: doubt.best.name),
    Column["Doubt"]("device", lambda doubt: doubt.best.row.device.name),
    Column["Doubt"]("accuracy", lambda doubt: doubt.best.row.trial.accuracy),
    Column["Doubt"]("measurement_mode", lambda doubt: doubt.best.row.measurement_mode, terminal=False),
    Column["Doubt"]("median_us", lambda doubt: doubt.best.median_us),
    Column["Doubt"]("template", lambda doubt: doubt.best.row.trial.config.template),
    Column["Doubt"]("config", lambda doubt: doubt.best.row.trial.config, terminal=False),
    Column["Doubt"]("date", lambda doubt: doubt.best.row.ended_at, terminal=False),
    Column["Doubt"]("changed", lambda doubt: doubt.changed),
    Column["Doubt"]("was", lambda doubt: doubt.was),
    Column["Doubt"]("now", lambda doubt: doubt.now),
    Column["Doubt"]("compared_with", lambda doubt: doubt.against),
)


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@run_on()
@click.option("--best", "most", type=click.IntRange(min=1), default=3, show_default=True, help="Kernels per layer.")
@DATABASE
@DIRECTORIES
@JOBS
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file: a testcase a winner.")
@format_options
def retime(
    what: str | None,
    device: str | None,
    most: int,
    db: str,
    directories: tuple[Path, ...],
    jobs: int | None,
    junit: Path | None,
    style: str | None,
) -> None:
    """Verify and time the best few kernels of each layer again.

    Each is marked confirmed, moved or regressed.

    Imported kernels of this device are among them, and count as measured here from then on. `moved` is faster and
    `regressed` slower than before beyond the noise floor; a kernel that is no longer correct has `failed`.

    Status 3: a winner (what `best` shows, or the fastest of what was only imported) regressed or failed. 1: nothing was
    re-timed. 130: Ctrl-C ended it after the layer at hand.
    """
    from autotune.cli.retiming import judge, measured, plans_of, retimed, testcases, unreached
    from autotune.store import Store

    if junit is not None:
        check_writable(junit, "--junit")
    name = name_of(what)
    with Store(db, create=False) as store:
        layers = store.studies.layers(name)  # a wrong name is told before a device is opened
    families = load_templates(directories, operations_here((row.layer.problem.operation for row in layers), what))
    began_at, began = datetime.now(UTC), time.monotonic()
    with (
        closing(open_evaluator(device, jobs or jobs_default())) as evaluator,
        Store(writable(db)) as store,
        stopping_on_interrupt() as stopping,
    ):
        plans = plans_of(store, name, evaluator.info, most)
        results: list[Retimed | NotRetimed] = []
        with counting("retime", sum(len(layer.rows) for layer in plans)) as tell:
            tell(0, "")
            for result in retimed(store, plans, evaluator, families, stopping):
                results.append(result)
                counts = Counter(one.retime.label for one in measured(results))
                tell(len(results), ", ".join(f"{count} {word}" for word, count in counts.items()))
        interrupted = stopping()
        info, environment = evaluator.info, evaluator.environment
    found: list[Retimed] = measured(results)
    counts = Counter(result.retime.label for result in found)
    if found:
        click.echo(", ".join(f"{count} {word}" for word, count in counts.items()), err=True)
    show(found, _RETIME_COLUMNS, style)
    if junit is not None:
        about = {"device": info.name, "driver": environment.driver, "toolkit": environment.toolkit}
        cases = testcases(plans, results)
        write_whole(junit, junit_xml("autotune retime", cases, about, began_at, time.monotonic() - began), "--junit")
    if interrupted:
        left = unreached(plans, results)
        end_interrupted(f"not re-timed: {', '.join(left)}" if left else "every layer was re-timed", resumes=False)
    judge(plans, found, db)


_RETIME_COLUMNS = (
    Column["Retimed"]("layer", lambda row: row.before.name),
    Column["Retimed"]("trial", lambda row: row.before.trial.number),
    Column["Retimed"]("device", lambda row: row.before.device.name),
    Column["Retimed"]("accuracy", lambda row: row.before.trial.accuracy),
    Column["Retimed"]("measurement_mode", lambda row: row.before.measurement_mode, terminal=False),
    Column["Retimed"]("template", lambda row: row.before.trial.config.template, terminal=False),
    Column["Retimed"]("config", lambda row: row.before.trial.config, below=True),
    Column["Retimed"]("origin", lambda row: row.before.origin),
    Column["Retimed"]("before_us", lambda row: row.retime.before_us),
    Column["Retimed"]("after_us", lambda row: row.retime.after_us),
    Column["Retimed"]("after_over_before", lambda row: row.ratio),
    Column["Retimed"]("noise_fraction", lambda row: row.noise),
    Column["Retimed"]("label", lambda row: row.retime.label),
    Column["Retimed"]("message", lambda row: row.retime.message or None, below=True),
    Column["Retimed"]("driver_before", lambda row: row.before.environment.driver, terminal=False),
    Column["Retimed"]("driver", lambda row: row.retime.environment.driver, terminal=False),
    Column["Retimed"]("toolkit_before", lambda row: row.before.environment.toolkit, terminal=False),
    Column["Retimed"]("toolkit", lambda row: row.retime.environment.toolkit, terminal=False),
)
