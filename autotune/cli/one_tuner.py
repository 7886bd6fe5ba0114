"""Waiting for the process that tunes the same study, told to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from autotune.cli.interrupts import end_interrupted
from autotune.devices.device import DeviceInfo
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.store import Store


@contextmanager
def its_turn(store: Store, study: Study, info: DeviceInfo, stopping: Callable[[], bool]) -> Iterator[None]:
    """Wait while another process tunes this study on such a device into this database; says so once."""
    from autotune.api.tuning import its_turn as turn_of

    said: list[str] = []

    def waits() -> None:
        if stopping():
            end_interrupted(f"stopped waiting for the process that tunes {study.name} into {store.path}")
        if not said:
            said.append(f"{study.name}: another process is tuning it into {store.path}; waiting for it to end")
            click.echo(said[0], err=True)

    with turn_of(store, study, info, waits):
        yield
