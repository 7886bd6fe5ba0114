"""A run that measures, on the command line: open_run of the API with progress, notices and Ctrl-C for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from autotune.cli.filters import say_device
from autotune.cli.interrupts import end_interrupted, stopping_on_interrupt
from autotune.cli.progress import observer
from autotune.devices.device import DeviceInfo
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.api.run import OpenRun
    from autotune.store import Store


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
    """Open the device, the database and the study's lock, as `autotune.api.run.open_run` does, and show progress."""
    from autotune.api import run

    notices: list[str] = []

    def waits(store: Store, interrupted: Callable[[], bool]) -> None:
        if interrupted():
            end_interrupted(f"stopped waiting for the process that tunes {study.name} into {store.path}")
        if not notices:
            notices.append(f"{study.name}: another process is tuning it into {store.path}; waiting for it to end")
            click.echo(notices[0], err=True)

    with run.open_run(
        study,
        device,
        jobs,
        db,
        on_results=on_results,
        check=check,
        say=say_device,
        warn=lambda message: click.echo(message, err=True),
        interrupts=stopping_on_interrupt,
        waits=waits,
        observer=observer,
    ) as opened:
        yield opened
