"""A lock with which one process at a time tunes a study on a kind of device into one database; others wait."""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.atomic_write import open_lock
from autotune.errors import StoreError, not_written

_LOOK_EVERY_S = 0.2
_ADVICE = "set XDG_CACHE_HOME to a folder that can be"


@contextmanager
def study_lock(
    folder: Path,
    *owned: object,
    waits: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Acquire the lock that `owned` identifies: a lock on a file in `folder`, which ends with the process.

    Two concurrent runs of one study would propose the same configs under the same numbers; the later run finds them
    done when it gets the lock. `waits` is called before every further attempt, and may raise to give up. Raises
    StoreError if the folder cannot be written.
    """
    name = hashlib.sha256(repr(owned).encode()).hexdigest()[:24]
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
        yield
