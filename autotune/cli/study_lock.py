"""A run that measures: it waits for the process that tunes the same study, shows progress and ends on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from autotune.cli.interrupts import end_interrupted, stopping_on_interrupt
from autotune.cli.progress import observer
from autotune.devices.device import DeviceInfo
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.evaluation.evaluator import Evaluator
    from autotune.store import Store
    from autotune.tuning.trial_log import Progress as TuneProgress


@contextmanager
def acquire_study_lock(store: Store, study: Study, info: DeviceInfo, stopping: Callable[[], bool]) -> Iterator[None]:
    """Wait while another process tunes this study on such a device into this database; says so once."""
    from autotune.api.tuning import acquire_study_lock as acquire

    said: list[str] = []

    def waits() -> None:
        if stopping():
            end_interrupted(f"stopped waiting for the process that tunes {study.name} into {store.path}")
        if not said:
            said.append(f"{study.name}: another process is tuning it into {store.path}; waiting for it to end")
            click.echo(said[0], err=True)

    with acquire(store, study, info, waits):
        yield


@contextmanager
def under_way(
    store: Store, study: Study, evaluator: Evaluator
) -> Iterator[tuple[Callable[[TuneProgress], None], Callable[[], bool]]]:
    """A run that measures: what shows its progress, and whether Ctrl-C asked it to end.

    It begins when no other process measures this study.
    """
    with (
        stopping_on_interrupt() as stopping,
        acquire_study_lock(store, study, evaluator.info, stopping),
        observer() as observe,
    ):
        yield observe, stopping
