"""One process at a time tunes a study on a kind of device into one database; the others wait for their turn."""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_EVERY_S = 0.2


@contextmanager
def turn(
    folder: Path, *owned: object, waits: Callable[[], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold what `owned` names, once no other process does: a lock on a file in `folder`, gone with the process.

    Two runs of one study would propose the same configs under the same numbers; the later one finds them done when its
    turn comes. `waits` is called before every further look, and may raise to give up.
    """
    name = hashlib.sha256(repr(owned).encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waits()
                sleep(_LOOK_EVERY_S)
        yield
