"""Prepare a run that measures a study: open the device and the database, lock the study, and handle Ctrl-C."""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.api.device_names import Say, Warn, cache_folder, evaluator_of
from autotune.api.interrupts import orderly_interrupts
from autotune.devices.device import DeviceInfo
from autotune.devices.host_machine import usable_cores
from autotune.devices.torch_baseline import require_torch
from autotune.errors import DeviceError, StoreError, not_written
from autotune.evaluation.evaluator import Evaluator
from autotune.resources import check_writable_results
from autotune.store import Store, path_of
from autotune.study import Study
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.trial_log import Progress

Stopping = AbstractContextManager[Callable[[], bool]]
"""Yields a function that returns whether the user has pressed Ctrl-C to end the run."""


@dataclass(frozen=True, slots=True)
class Caller:
    """How a run reports to the command or function that started it, and how Ctrl-C stops it."""

    wait: Callable[[Store, bool], None]
    """called repeatedly while another process measures the study into this database; the argument is whether the user
    has pressed Ctrl-C; may raise to give up
    """
    observer: Callable[[], AbstractContextManager[Callable[[Progress], None]]]
    """yields a function that the run calls with its progress"""
    device: Say = lambda *_: None
    """called with the opened device, the device's name and the reason for choosing it"""
    warn: Warn = lambda _: None
    """called if other programs use the device, which makes measured times unreliable"""
    interrupts: Callable[[], Stopping] = orderly_interrupts


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run's open device and database, and the functions that connect it to its caller."""

    evaluator: Evaluator
    store: Store
    stopping: Callable[[], bool]
    """returns whether the user has pressed Ctrl-C to end the run"""
    observe: Callable[[Progress], None]
    """reports progress to the caller"""


@contextmanager
def open_run(
    study: Study,
    device: str | None,
    jobs: int | None,
    db: str | Path,
    caller: Caller,
    *,
    on_results: bool = False,
    check: Callable[[DeviceInfo], object] = lambda _: None,
) -> Iterator[OpenRun]:
    """Open the device and then the database, and wait until no other process is measuring the study.

    With `on_results`, the database must already contain results. `check` raises an error for a device that the run
    can't use. Nothing is written until both checks have passed.
    """
    check_writable_results(path_of(db))
    if jobs is not None and jobs < 1:
        raise DeviceError(f"jobs = {jobs}: expected at least 1 compiler")
    if on_results:
        with Store(db, create=False):
            pass
    with closing(evaluator_of(device, jobs or usable_cores(), say=caller.device, warn=caller.warn)) as evaluator:
        check(evaluator.info)
        with (
            Store(db) as store,
            caller.interrupts() as stopping,
            acquire_study_lock(store, study, evaluator.info, lambda: caller.wait(store, stopping())),
            caller.observer() as observe,
        ):
            yield OpenRun(evaluator, store, stopping, observe)


def check_baselines(finals: FinalsPlan, info: DeviceInfo) -> None:
    """Raise DeviceError or ToolchainError if the device can't time the libraries used as rivals in the finals."""
    if not finals.libraries:
        return
    if not info.can.gpu:
        raise DeviceError(
            f"{info.kind}: --baseline {finals.libraries[0]} is for CUDA devices; leave it out or give --device cuda:N"
        )
    require_torch()


_LOOK_EVERY_S = 0.2
_ADVICE = "set XDG_CACHE_HOME to a folder that can be"


@contextmanager
def acquire_study_lock(store: Store, study: Study, info: DeviceInfo, waits: Callable[[], None]) -> Iterator[None]:
    """Wait while another process tunes the same study on the same device into the same database.

    Two concurrent runs of one study would propose the same configs under the same trial numbers. When the later run
    gets the lock, it finds the trials already finished. The lock is on a file in the cache folder and ends with the
    process. `waits` is called before each further attempt, and may raise an exception to give up. Raises StoreError if
    the folder can't be written.
    """
    owned = (store.path.resolve(), study.name, info.identity)
    name = hashlib.sha256(repr(owned).encode()).hexdigest()[:24]
    folder = cache_folder() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("ab")
    except OSError as error:
        raise StoreError(not_written(folder, error, _ADVICE)) from None
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waits()
                time.sleep(_LOOK_EVERY_S)
            except OSError as error:  # the file system does not support locks
                raise StoreError(f"{folder}: cannot be locked: {error.strerror}; {_ADVICE}") from None
        yield
