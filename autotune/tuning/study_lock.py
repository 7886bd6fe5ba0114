"""A lock with which one process at a time tunes a study on a kind of device into one database; others wait.

The lock file has the run's budget, so that another process can show the progress.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from autotune.atomic_write import open_lock
from autotune.bounded_io import open_regular
from autotune.errors import StoreError, not_written

_LOOK_EVERY_S = 0.2
_ADVICE = "set XDG_CACHE_HOME to a folder that can be"


_LARGEST = 4096  # maximum size of a lock file


@dataclass(frozen=True, slots=True)
class RunBudget:
    """The start of a run and its budget."""

    started_at: float
    """seconds since 1970"""
    trials: int
    """evaluations of one layer"""
    trials_total: int | None = None
    """evaluations of all layers together"""
    time_budget_total_s: float | None = None


@dataclass(frozen=True, slots=True)
class LatestRun:
    """The latest run of a study on this machine."""

    budget: RunBudget
    is_running: bool


@contextmanager
def study_lock(
    folder: Path,
    *owned: object,
    waits: Callable[[], None],
    budget: RunBudget | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Acquire the lock that `owned` identifies: a lock on a file in `folder`, which ends with the process.

    Two concurrent runs of one study would propose the same configs under the same numbers; the later run finds them
    done when it gets the lock. `waits` is called before every further attempt, and may raise to give up. Raises
    StoreError if the folder cannot be written.
    """
    name = _name(owned)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_lock(folder / name)
    except OSError as error:
        raise StoreError(not_written(folder, error, _ADVICE)) from None
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waits()
                sleep(_LOOK_EVERY_S)
            except OSError as error:  # on a file system without locks
                raise StoreError(f"{folder}: cannot be locked: {error.strerror}; {_ADVICE}") from None
        if budget is not None:
            _write(file, budget)
        yield


def latest_run(folder: Path, *owned: object) -> LatestRun | None:
    """The latest run that held this lock; None if there was none on this machine, or its file cannot be read."""
    try:
        with open_regular(folder / _name(owned)) as file:
            budget = RunBudget(**json.loads(file.read(_LARGEST)))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return LatestRun(budget, is_running=True)
            return LatestRun(budget, is_running=False)
    except (OSError, ValueError, TypeError):
        return None


def _name(owned: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(owned).encode()).hexdigest()[:24]


def _write(file: BinaryIO, budget: RunBudget) -> None:
    """Write a run's budget; a full disk does not prevent the run."""
    with suppress(OSError):
        file.truncate(0)
        file.write(json.dumps(asdict(budget)).encode())
        file.flush()
