"""A run that measures: device, database, progress and Ctrl-C, the same for each command that measures a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from autotune.api.device_names import jobs_default
from autotune.cli.devices import open_evaluator
from autotune.cli.interrupts import end_interrupted, stopping_on_interrupt
from autotune.cli.options import writable
from autotune.cli.progress import observer
from autotune.devices.device import DeviceInfo
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.evaluation.evaluator import Evaluator
    from autotune.store import Store
    from autotune.tuning.trial_log import Progress


@dataclass(frozen=True, slots=True)
class OpenRun:
    """What a run measures with."""

    evaluator: Evaluator
    store: Store
    observe: Callable[[Progress], None]
    """shows progress"""
    stopping: Callable[[], bool]
    """whether Ctrl-C asked for the end"""


@contextmanager
def open_run(
    study: Study,
    device: str | None,
    jobs: int | None,
    db: str,
    *,
    on_results: bool = False,
    check: Callable[[DeviceInfo], object] = lambda _: None,
) -> Iterator[OpenRun]:
    """Open the device, then the database, then wait until no other process measures the study.

    A run `on_results` needs a database that has some. `check` raises for a device that the run cannot use. Nothing is
    written before both are known to be in order.
    """
    from autotune.api.tuning import acquire_study_lock
    from autotune.store import Store

    if on_results:
        with Store(db, create=False):
            pass
    waited: list[str] = []

    def waits() -> None:
        if stopping():
            end_interrupted(f"stopped waiting for the process that tunes {study.name} into {store.path}")
        if not waited:
            waited.append(f"{study.name}: another process is tuning it into {store.path}; waiting for it to end")
            click.echo(waited[0], err=True)

    with closing(open_evaluator(device, jobs or jobs_default())) as evaluator:
        check(evaluator.info)
        with (
            Store(writable(db)) as store,
            stopping_on_interrupt() as stopping,
            acquire_study_lock(store, study, evaluator.info, waits),
            observer() as observe,
        ):
            yield OpenRun(evaluator, store, observe, stopping)
