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
"""by this process, and not removed yet"""


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
        if not os.path.lexists(folder):  # removing it opens files, and there may be too many open files
            _made.discard(folder)


@contextmanager
def removing_leftovers() -> Iterator[None]:
    """Remove, when the block ends, the folders made in it that nobody has removed, as a signal or a limit came."""
    before = frozenset(_made)
    try:
        yield
    finally:
        for folder in _made - before:
            remove(folder)
            _made.discard(folder)


def remove(folder: str) -> None:
    """Remove a folder into which processes that are being killed may write for another moment."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.01)
