"""Temporary folders that are removed even if a signal ends the run."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

_made: set[str] = set()
"""folders that this process made and has not removed yet"""


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder that is removed after the block. Its name is recorded before it is created, so a signal in between
    leaves none.

    Raises OSError if it cannot be created.
    """
    folder = os.path.join(tempfile.gettempdir(), f"autotune-{secrets.token_hex(8)}")
    _made.add(folder)
    try:
        os.mkdir(folder, 0o700)
        yield folder
    finally:
        remove(folder)
        if not os.path.lexists(folder):  # removing it opens files, which fails if too many are open
            _made.discard(folder)


@contextmanager
def removing_leftovers() -> Iterator[None]:
    """At the end of the block, remove the folders made in it that still exist, as after a signal or a limit."""
    before = frozenset(_made)
    try:
        yield
    finally:
        for folder in _made - before:
            remove(folder)
            _made.discard(folder)


def remove(folder: str) -> None:
    """Remove a folder into which dying processes may still write."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.01)
